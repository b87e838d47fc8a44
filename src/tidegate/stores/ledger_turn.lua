-- What a new report says (ledger_model._take)
local function settle(x, charge)
  local c, b, tenant, tokens, backend = x.c, charge[2] + 1, charge[3], charge[4], charge[5]
  if c.bands[b] then
    set_counter(x, b, tenant, counters_of(x, b, {tenant})[tenant] + tokens * (c.steps[tenant] or TOKEN))
  end
  if c.budgets[tenant] then
    local bucket = budget_bucket(x, tenant)
    drained(bucket, c.budgets[tenant], x.now); pour(bucket, tokens, 0)
  end
  if c.quotas[backend] then
    local bucket = quota_bucket(x, backend)
    drained(bucket, c.quotas[backend], x.now); pour(bucket, tokens, 0)
  end
end
local function take(x, record, report, ack)
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
  local top, held = report[11] or 0, 0
  for _, grant in ipairs(pending) do
    hold(s, record, grant[3], 1)
    if grant[2] == 0 then top = top + 1 end
  end
  for _, each in pairs(record.h) do held = held + each end
  record.k = max(record.k, min(top, held) * PPM)
  for b = 1, x.bands do s.rates[b] = s.rates[b] + (report[8][b] or 0) - (record.r[b] or 0) end
  record.w, record.r, record.f = report[7], report[8], report[12] or ''
  record.l, record.at, record.v = #pending < x.most, x.now, {}
  take_bids(x, record, report[5])
end
local function control(x, report)
  local auto = {}
  for i, name in ipairs(x.c.backends) do auto[name] = x.c.auto[i] end
  for _, each in ipairs(report[9]) do
    if auto[each[1]] and each[2] >= 0 then x.s.seats[each[1]] = each[2] end
  end
  x.s.reserve = #report[10] == x.bands and report[10] or {}
  x.s.short = #(report[13] or {}) == x.bands and report[13] or {}
  measure(x)
end

-- ledger_model.solo_share; every call comes through here, so it goes over the records without tables of its own
local function thousandths(millionths) return (millionths - millionths % 1000) / 1000 end
local function solo_share(x, record)
  local records, total, count, least, most = x.records, x.total * 1000, x.s.n, x.total * 100, x.total * 125
  local use, over, tops, all = 0, 0, 0, 0
  for _, each in pairs(records) do use = use + thousandths(each.u) end
  local function beyond(each)
    return max(0, thousandths(each.k) - (use > 0 and floor(total * thousandths(each.u) / use) or total))
  end
  for _, each in pairs(records) do
    if each.k > 0 then over = over + beyond(each) end
  end
  local function first(each)
    if over <= most then return thousandths(each.k) end
    local much = beyond(each)
    return thousandths(each.k) - much + floor(much * most / over)
  end
  for _, each in pairs(records) do
    local mine = first(each)
    tops = tops + mine
    if each.u > mine * 1000 then all = all + floor((each.u - mine * 1000) / 10000) end
  end
  local left, whole = total - tops, 8 * count * all + count * least
  local function part(each)
    local mine = first(each)
    if left <= 0 then return tops > 0 and floor(total * mine / tops) or 0 end
    return mine + floor(left * (8 * count * floor(max(0, each.u - mine * 1000) / 10000) + least) / whole)
  end
  local before, mine = 2 * count, part(record)
  for _, each in pairs(records) do
    if each.e < record.e then before = before + part(each) end
  end
  return max(1, floor((before + mine) / 1000) - floor(before / 1000))
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
      local known = counters_of(x, b, said.tenants)
      for _, tenant in ipairs(said.tenants) do
        counters[#counters + 1] = {b - 1, tenant, max(known[tenant], s.clocks[b])}
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
local memory = {} -- of each pool, by key: the state as text and as table, and what was read of the rest
local function begin(keys, now)
  local c = rules_of(keys)
  if not c then return nil end
  local key, bands = keys[STATE], #c.bands
  local raw, kept = call('GET', key), memory[keys[STATE]]
  memory[key] = nil -- a call that fails midway leaves nothing
  local x = {keys = keys, c = c, bands = bands, now = now, touched = {}, poured = {}}
  if raw and kept and kept.raw == raw then
    x.s, x.records, x.counters, x.budgets, x.known = kept.s, kept.records, kept.counters, kept.budgets, kept.known
  else
    local fine, s = pcall(unpacked, raw)
    if not fine or type(s) ~= 'table' or not s.turns then s = nil end -- there is none, or it is none of ours
    x.s = s or new_state(c, now)
    x.records = s and load(x) or {}
    tally(x)
    x.counters, x.budgets, x.known = {}, {}, 0
    for b = 1, bands do x.counters[b] = {} end
  end
  return x, raw
end
local function remember(x, raw)
  if x.known > KNOWN_MAX then
    for b = 1, x.bands do x.counters[b] = {} end
    x.known, x.budgets = 0, {}
  end
  memory[x.keys[STATE]] = {raw = raw, s = x.s, records = x.records, counters = x.counters, budgets = x.budgets,
                           known = x.known}
end
local function finish(x)
  for name in pairs(x.touched) do save(x, name, x.records[name]) end
  for tenant, bucket in pairs(x.poured) do call('HSET', x.keys[BUDGETS], tenant, pack(bucket)) end
  x.s.turns = x.s.turns + 1
  local raw = pack(x.s)
  call('SET', x.keys[STATE], raw)
  remember(x, raw)
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
  s.ahead = s.ahead or 0 -- a state of an older release has none
  if now + s.ahead < s.last - 2 * c.heartbeat_ms then s.ahead = s.last - now end -- the clock was set back
  x.now = max(now + s.ahead, s.last)
  if x.now - s.last > 2 * c.heartbeat_ms and s.n > 0 then
    s.grace, s.open = x.now + c.ttl_ms, max(s.open, x.now + c.rebuild_ms)
  end
  s.last = x.now
  if x.now >= s.grace and x.now >= s.late then drop_late(x) end
  if s.version ~= c.version then adapt(x) end
  if x.now >= s.due_back then recall(x, name) end
  local record, sequence, ack = x.records[name], report[2], report[3]
  if not record or record.e ~= report[1] then
    if record then drop(x, name) end
    s.epoch = max(s.epoch + 1, x.now)
    sequence, ack = 1, 0
    record = {e = s.epoch, t = x.now, s = 0, g = 0, a = 0, c = 0, u = 0, k = 0, h = {}, p = {}, w = {}, r = {},
              l = false, at = x.now, v = {}, b = {}, f = ''}
    x.records[name] = record
    s.n = s.n + 1
  end
  local held = 0
  for _, count in pairs(record.h) do held = held + count end
  local passed = min(USE_MS, x.now - record.t)
  record.u = record.u + floor((held * PPM - record.u) * passed / USE_MS)
  record.k = record.k - floor(record.k * passed / USE_MS)
  record.t = x.now
  if s.control == '' then s.control = name end
  for _, said in ipairs(report[5]) do said.tenants = tenants_of(said) end -- taking the bids changes their heads
  if sequence > record.s then
    record.s = sequence
    take(x, record, report, ack)
    call('HSET', keys[REPORTS], name, args[2])
    if s.control == name then control(x, report) end
  end
  if x.now >= s.open then
    for _ = 1, GRANTS_MAX do if not grant_one(x, name) then break end end
  end
  local answer = reply(x, name, record, report)
  x.touched[name] = true
  finish(x)
  return answer
end
local function leave(keys, args)
  local x, raw = begin(keys, 0)
  if x and raw then
    drop(x, args[1])
    finish(x)
  end
  return 'OK'
end
-- ledger_state.stays for another number of bands; where it may be, the pool is as a new one from now on.
local function fits(keys, bands)
  local x = begin(keys, 0)
  for _, record in pairs(x.records) do
    if #record.w > 0 and #record.w ~= bands and record.t > x.s.last - x.c.ttl_ms then return false end
  end
  call('DEL', keys[STATE], keys[RECORDS], keys[REPORTS], keys[BUDGETS], unpack(keys, counters_key(1)))
  return true
end
-- ARGV: rules, document. Answers OK or SAME; OLD and the version in force; BANDS and how many those have who live.
local function configure(keys, args)
  local current, new = rules_of(keys), cjson.decode(args[1])
  if current then
    if call('GET', keys[DOCUMENT]) == args[2] then return {'SAME', current.version} end
    if new.version <= current.version then return {'OLD', current.version} end
    if #new.bands ~= #current.bands and not fits(keys, #new.bands) then return {'BANDS', #current.bands} end
  end
  call('SET', keys[RULES], args[1])
  call('SET', keys[DOCUMENT], args[2])
  return {'OK', new.version}
end
local function view(keys)
  local x, raw = begin(keys, 0)
  if not x or not raw then return nil end
  local rows = {}
  for name, record in pairs(x.records) do
    local bids = {}
    for b = 1, x.bands do bids[b] = record.b[b] and record.b[b][1] or 0 end
    rows[#rows + 1] = {name, record.e, record.t, record.h, #record.p, record.w, bids, record.f}
  end
  remember(x, raw)
  return pack({max(server_ms() + (x.s.ahead or 0), x.s.last), x.s, rows})
end
redis.register_function{function_name = '@LIBRARY@_turn', callback = turn, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_leave', callback = leave, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_configure', callback = configure, flags = {'allow-oom'}}
redis.register_function{function_name = '@LIBRARY@_view', callback = view, flags = {'no-writes'}}
