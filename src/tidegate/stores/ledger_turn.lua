-- What a new report says (ledger_model._take)
local function settle(x, charge)
  local c, b, tenant, tokens, backend = x.c, charge[2] + 1, charge[3], charge[4], charge[5]
  if c.bands[b] then call('ZINCRBY', x.keys[counters_key(b)], text(tokens * (c.steps[tenant] or TOKEN)), tenant) end
  if c.budgets[tenant] then
    local bucket = budget_bucket(x, tenant)
    drained(bucket, c.budgets[tenant], x.now); pour(bucket, tokens, 0)
  end
  if c.quotas[backend] then
    local bucket = quota_bucket(x, backend)
    drained(bucket, c.quotas[backend], x.now); pour(bucket, tokens, 0)
  end
end
local function take_bid(x, name, record, said)
  local b = said[1] + 1
  local heads, oldest = said[4], said[3]
  for _, head in ipairs(heads) do head[1] = x.now - head[1] end -- in place: nobody reads them as ages again
  oldest[1] = x.now - oldest[1]
  local bid = {said[2], oldest, heads, said[5]}
  for _, grant in ipairs(record.p) do
    if grant[2] == b - 1 and bid[1] > 0 then advance(bid, grant[4] == 'overtake') end
  end
  if bid[1] > 0 then record.b[b] = bid end
end
local function take(x, name, record, report, ack)
  local c, s = x.c, x.s
  for _, charge in ipairs(report[6]) do
    if charge[1] > record.c then record.c = charge[1]; settle(x, charge) end
  end
  record.a, record.g = max(record.a, ack), max(record.g, ack)
  local pending = {}
  for _, grant in ipairs(record.p) do
    if grant[1] > record.a and grant[5] > x.now - c.recall_ms then pending[#pending + 1] = grant end
  end
  record.p = pending
  for backend, held in pairs(record.h) do s.held[backend] = s.held[backend] - held end
  record.h = {}
  for _, used in ipairs(report[4]) do
    if x.seats[used[1]] and used[2] > 0 then -- the last one counts, should one be named twice
      hold(s, record, used[1], used[2] - (record.h[used[1]] or 0))
    end
  end
  for _, grant in ipairs(pending) do hold(s, record, grant[3], 1) end
  for b = 1, x.bands do s.rates[b] = s.rates[b] + (report[8][b] or 0) - (record.r[b] or 0) end
  record.w, record.r = report[7], report[8]
  local before = record.b
  record.b = {}
  s.masks[name] = nil
  for _, said in ipairs(report[5]) do
    if c.bands[said[1] + 1] and said[2] > 0 and said[4][1] then take_bid(x, name, record, said) end
  end
  local listed = #pending < x.most
  for b = 1, x.bands do
    local bid = record.b[b]
    if bid and listed then
      show(x, name, record, b)
      if bid[4][1] then
        s.masks[name] = s.masks[name] or {}
        s.masks[name][text(b)] = bid[4]
      end
    elseif bid or before[b] or not listed then hide(x, name, b) end
  end
end
local function control(x, report)
  local auto = {}
  for i, name in ipairs(x.c.backends) do auto[name] = x.c.auto[i] end
  for _, each in ipairs(report[9]) do
    if auto[each[1]] and each[2] >= 0 then x.s.seats[each[1]] = each[2] end
  end
  x.s.reserve = #report[10] == x.bands and report[10] or {}
  measure(x)
end

local function solo_share(x, record)
  local count, mine, all, least = x.s.n, floor(record.u / 1000), floor(x.s.use / 1000), x.total * 1000
  local whole = 8 * count * all + count * least
  if whole <= 0 then return 1 end
  return max(1, floor(x.total * (8 * count * mine + least) / whole))
end
local function tenants_of(said) -- each once, in order
  local tenants, seen = {}, {}
  for _, head in ipairs(said[4]) do
    if not seen[head[2]] then seen[head[2]] = true; tenants[#tenants + 1] = head[2] end
  end
  if not seen[said[3][2]] then tenants[#tenants + 1] = said[3][2] end
  return tenants
end
local function reply(x, name, record, report)
  local c, s = x.c, x.s
  local counters, debts, closed, seats, reserve, owing = {}, {}, {}, {}, {}, {}
  local function owe(tenant)
    local budget = c.budgets[tenant]
    if budget and not owing[tenant] then
      owing[tenant] = true
      local ms = wait_ms(budget_bucket(x, tenant), budget, x.now)
      if ms > 0 then debts[#debts + 1] = {tenant, ms} end
    end
  end
  for _, said in ipairs(report[5]) do
    local b = said[1] + 1
    if c.bands[b] then
      local tenants = said.tenants
      local values = call('ZMSCORE', x.keys[counters_key(b)], unpack(tenants))
      for i, tenant in ipairs(tenants) do
        counters[#counters + 1] = {b - 1, tenant, max(tonumber(values[i] or 0) or 0, s.clocks[b])}
        owe(tenant)
      end
    end
  end
  for _, charge in ipairs(report[6]) do owe(charge[3]) end
  for _, backend in ipairs(c.backends) do
    seats[#seats + 1] = {backend, x.seats[backend], s.held[backend] or 0, s.tokens[backend] or 0}
    if c.quotas[backend] then
      local ms = wait_ms(quota_bucket(x, backend), c.quotas[backend], x.now)
      if ms > 0 then closed[#closed + 1] = {backend, ms} end
    end
  end
  for b, rule in ipairs(c.bands) do reserve[b] = s.reserve[b] or rule.reserve end
  return pack({record.e, record.p, max(0, s.open - x.now), solo_share(x, record), x.now, c.version, c.mode, s.n, record.c,
               s.control == name, counters, s.clocks, seats, reserve, s.rates, debts, closed})
end

local function server_ms()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end
local function begin(keys, now)
  local c = rules_of(keys)
  if not c then return nil end
  local raw = call('GET', keys[STATE])
  return {keys = keys, c = c, bands = #c.bands, s = raw and unpacked(raw) or new_state(c, now), now = now, cache = {},
          budgets = {}, touched = {}}
end
-- ARGV: replica, report, channels (what stands before the replica's name), PUBLISH or SPUBLISH; in tests the time.
local function turn(keys, args)
  local now = tonumber(args[5]) or server_ms()
  local x = begin(keys, now)
  if not x then return redis.error_reply('NOCONFIG the pool has no configuration') end
  local c, s, name, report = x.c, x.s, args[1], unpacked(args[2])
  x.channel, x.publish = args[3], args[4]
  x.test = args[5]
  measure(x)
  x.now = max(now, s.last)
  if x.now - s.last > 2 * c.heartbeat_ms and s.n > 0 then
    s.grace, s.open = x.now + c.ttl_ms, max(s.open, x.now + c.rebuild_ms)
  end
  s.last = x.now
  if x.now >= s.grace and x.now >= s.late then
    for _, late in ipairs(call('ZRANGEBYSCORE', keys[SEEN], '-inf', text(x.now - c.ttl_ms))) do drop(x, late) end
    local first = call('ZRANGE', keys[SEEN], 0, 0, 'WITHSCORES')
    s.late = (tonumber(first[2]) or x.now) + c.ttl_ms -- nobody can be late before
  end
  if s.version ~= c.version then
    adapt(x)
  end
  if x.now >= s.due_back then recall(x, name) end
  local record, sequence, ack = load(x, name), report[2], report[3]
  if not record or record.e ~= report[1] then
    if record then drop(x, name) end
    s.epoch = max(s.epoch + 1, x.now)
    sequence, ack = 1, 0
    record = {e = s.epoch, t = x.now, s = 0, g = 0, a = 0, c = 0, u = 0, h = {}, p = {}, b = {}, w = {}, r = {}}
    x.cache[name] = record
    s.n = s.n + 1
  end
  local held = 0
  for _, count in pairs(record.h) do held = held + count end
  local change = floor((held * PPM - record.u) * min(USE_MS, x.now - record.t) / USE_MS)
  record.u, s.use, record.t = record.u + change, s.use + change, x.now
  call('ZADD', keys[SEEN], text(x.now), name)
  if s.control == '' then s.control = name end
  for _, said in ipairs(report[5]) do said.tenants = tenants_of(said) end -- taking the bids changes their heads
  if sequence > record.s then
    record.s = sequence
    take(x, name, record, report, ack)
    if s.control == name then control(x, report) end
  end
  if x.now >= s.open then
    x.picky = next(s.masks) ~= nil or next(c.budgets) ~= nil
    for _ = 1, GRANTS_MAX do if not grant_one(x, name) then break end end
  end
  local answer = reply(x, name, record, report)
  for other in pairs(x.touched) do save(x, other, x.cache[other]) end
  for tenant, bucket in pairs(x.budgets) do call('HSET', keys[BUDGETS], tenant, pack(bucket)) end
  save(x, name, record)
  call('SET', keys[STATE], pack(s))
  return answer
end
local function leave(keys, args)
  local x = begin(keys, 0)
  if x and call('EXISTS', keys[STATE]) == 1 then
    drop(x, args[1])
    call('SET', keys[STATE], pack(x.s))
  end
  return 'OK'
end
-- ARGV: rules, document. Answers OK, SAME, or why not and the version in force.
local function configure(keys, args)
  local current, new = rules_of(keys), cjson.decode(args[1])
  if current then
    if call('GET', keys[DOCUMENT]) == args[2] then return {'SAME', current.version} end
    if new.version <= current.version then return {'OLD', current.version} end
    if #new.bands ~= #current.bands then return {'BANDS', current.version} end
  end
  call('SET', keys[RULES], args[1])
  call('SET', keys[DOCUMENT], args[2])
  return {'OK', new.version}
end
local function view(keys)
  local s = call('GET', keys[STATE])
  if not s then return nil end
  local records = {}
  for i, each in ipairs(call('HGETALL', keys[REPLICAS])) do records[i] = i % 2 == 1 and each or unpacked(each) end
  return pack({server_ms(), unpacked(s), records})
end
redis.register_function{function_name = '@LIBRARY@_turn', callback = turn, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_leave', callback = leave, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_configure', callback = configure, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_view', callback = view, flags = {'no-writes'}}
