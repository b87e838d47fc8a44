#!lua name=@LIBRARY@
-- The ledger of shared pools inside the store (Valkey, or Redis 7 and later). It decides as ledger_model.py does, whose
-- words it uses; a test feeds both the same reports and compares whole replies. All numbers are whole.
-- KEYS, all with one hash tag: rules, state, records (of replicas), reports (of replicas, as they came), budgets,
-- document; then per band its counters (tenant).
-- Record: e epoch, t seen, s sequence, g last grant, a ack, c last charge, u average use, k most used by the highest
-- band, h held, p unconfirmed grants, w waiting, r rates, l its bids count, at when its report came, v grants that its bids had lost when the rules changed; and b bids
-- {count, oldest, heads, backends} with tickets {arrival, tenant, work, prefer}, which are made of the report.
-- What was read stays in memory from one call to the next, as tables. Every call that changes anything writes the state
-- with a new number (turns), so whoever finds the state as it left it finds all else so: a server that failed over, a
-- library of another release or a store that was wiped is noticed by that, and everything is read anew.
local PPM, TOKEN, BUCKET, DRAIN, DEPTH, USE_MS = 1000000, 1000, 3600000, 59, 60000, 30000
local GRANTS_MAX, PRUNE_EVERY = 64, 256
local KNOWN_MAX = 4096
local NEVER = 2 ^ 53
local RULES, STATE, RECORDS, REPORTS, BUDGETS, DOCUMENT = 1, 2, 3, 4, 5, 6
-- The libraries are there when a function runs, not yet when it is loaded.
local function floor(number) return math.floor(number) end
local function max(one, other) return one > other and one or other end
local function min(one, other) return one < other and one or other end
local function call(...) return redis.call(...) end
local function pack(value) return cmsgpack.pack(value) end
local function unpacked(text) return cmsgpack.unpack(text) end
local function counters_key(b) return 6 + b end
local function text(number) return string.format('%.0f', number) end

local known = {} -- rules as text and as table, by key
local function rules_of(keys)
  local raw = call('GET', keys[RULES])
  if not raw then return nil end
  local cached = known[keys[RULES]]
  if not cached or cached.raw ~= raw then
    cached = {raw = raw, rules = cjson.decode(raw)}
    known[keys[RULES]] = cached
  end
  return cached.rules
end

local function new_state(c, now)
  local s = {last = now, open = now + c.rebuild_ms, grace = 0, epoch = 0, version = -1, key = '', gap = {}, credit = {},
             due = {}, out = {}, present = 0, clocks = {}, grants = 0, turns = 0, tokens = {}, seats = {}, reserve = {},
             short = {},
             control = '', quotas = {}, late = 0, due_back = NEVER, n = 0, held = {}, rates = {}}
  for b = 1, #c.bands do s.clocks[b] = 0; s.rates[b] = 0 end
  return s
end

-- Buckets (ledger_state.Bucket): {tokens, requests, at}
local function drained(bucket, quota, now)
  local passed = now - bucket[3]
  bucket[1] = max(0, bucket[1] - passed * quota[1] * DRAIN)
  bucket[2] = max(0, bucket[2] - passed * quota[2] * DRAIN)
  bucket[3] = now
end
local function wait(level, quota)
  local over = level - quota * DEPTH
  if quota > 0 and over >= 0 then return floor(over / (quota * DRAIN)) + 1 end
  return 0
end
local function wait_ms(bucket, quota, now)
  drained(bucket, quota, now)
  return max(wait(bucket[1], quota[1]), wait(bucket[2], quota[2]))
end
local function pour(bucket, tokens, requests)
  bucket[1] = max(0, bucket[1] + tokens * BUCKET); bucket[2] = bucket[2] + requests * BUCKET
end
local function quota_bucket(x, name)
  if not x.s.quotas[name] then x.s.quotas[name] = {0, 0, 0} end
  return x.s.quotas[name]
end
local function budget_bucket(x, tenant)
  local bucket = x.budgets[tenant]
  if not bucket then
    local raw = call('HGET', x.keys[BUDGETS], tenant)
    bucket = raw and unpacked(raw) or {0, 0, 0}
    x.budgets[tenant] = bucket
  end
  x.poured[tenant] = bucket
  return bucket
end

-- Counters of tenants, a table for each band, 0 for one that has none
local function counters_of(x, b, tenants) -- reads those that are not in memory
  local known, missing = x.counters[b], nil
  for _, tenant in ipairs(tenants) do
    if not known[tenant] then missing = missing or {}; missing[#missing + 1] = tenant end
  end
  if missing then
    local values = call('ZMSCORE', x.keys[counters_key(b)], unpack(missing))
    for i, tenant in ipairs(missing) do known[tenant] = tonumber(values[i] or 0) or 0 end
    x.known = x.known + #missing
  end
  return known
end
local function counter_of(x, b, tenant)
  return max(x.counters[b][tenant] or counters_of(x, b, {tenant})[tenant], x.s.clocks[b])
end
local function set_counter(x, b, tenant, value)
  x.counters[b][tenant] = value
  call('ZADD', x.keys[counters_key(b)], text(value), tenant)
end

-- Records
local function save(x, name, record)
  call('HSET', x.keys[RECORDS], name, pack({record.e, record.t, record.s, record.g, record.a, record.c, record.u, record.h,
       record.p, record.w, record.r, record.l, record.at, record.v, record.k, record.f}))
end
local function unbid(x, name, record)
  record.b, record.v = {}, {}
  call('HDEL', x.keys[REPORTS], name)
end
local function hold(s, record, backend, count)
  record.h[backend] = (record.h[backend] or 0) + count
  s.held[backend] = (s.held[backend] or 0) + count
end
local function drop(x, name)
  local s, record = x.s, x.records[name]
  if not record then return end
  for backend, held in pairs(record.h) do s.held[backend] = s.held[backend] - held end
  for b = 1, x.bands do s.rates[b] = s.rates[b] - (record.r[b] or 0) end
  s.n = s.n - 1
  if s.control == name then s.control = '' end
  x.records[name], x.touched[name] = nil, nil
  call('HDEL', x.keys[RECORDS], name); call('HDEL', x.keys[REPORTS], name)
end
local function drop_late(x)
  local late, first = {}, x.now
  for name, record in pairs(x.records) do
    if record.t <= x.now - x.c.ttl_ms then late[#late + 1] = name else first = min(first, record.t) end
  end
  for _, name in ipairs(late) do drop(x, name) end
  x.s.late = first + x.c.ttl_ms -- nobody can be late before
end
local function recall(x, me)
  local s, next_back = x.s, NEVER
  for name, record in pairs(x.records) do
    local oldest = record.p[1]
    if oldest and name ~= me and oldest[5] <= x.now - x.c.recall_ms then
      for _, grant in ipairs(record.p) do hold(s, record, grant[3], -1) end
      record.p = {}
      unbid(x, name, record)
      x.touched[name] = true
    elseif oldest then next_back = min(next_back, oldest[5] + x.c.recall_ms) end
  end
  s.due_back = next_back -- nothing is to be taken back before
end
local function advance(bid, overtake) -- ledger_state.LiveBid.advance
  bid[1] = bid[1] - 1
  local heads, oldest = bid[3], bid[2]
  local gone = overtake and oldest or heads[1]
  local function same(t, u) return t[1] == u[1] and t[2] == u[2] and t[3] == u[3] and t[4] == u[4] end
  if #heads > 1 then
    for i = 1, #heads do
      if same(heads[i], gone) then table.remove(heads, i); break end
    end
  end
  if same(gone, oldest) then
    local best = heads[1]
    for i = 2, #heads do if heads[i][1] < best[1] then best = heads[i] end end
    bid[2] = best
  end
end
local function take_bid(record, said, b) -- a bid as said, without the tickets that unconfirmed grants will take
  local heads, oldest = said[4], said[3]
  for _, head in ipairs(heads) do head[1] = record.at - head[1] end -- in place: nobody reads them as ages again
  oldest[1] = record.at - oldest[1]
  local bid = {said[2], oldest, heads, said[5]}
  local function lose(grant) if grant[2] == b - 1 and bid[1] > 0 then advance(bid, grant[4] == 'overtake') end end
  local last = record.v[#record.v]
  for _, grant in ipairs(record.v) do lose(grant) end
  for _, grant in ipairs(record.p) do if not last or grant[1] > last[1] then lose(grant) end end
  record.b[b] = bid[1] > 0 and bid or nil
end
local function take_bids(x, record, bids)
  record.b = {}
  for _, said in ipairs(bids) do
    local b = said[1] + 1
    if x.c.bands[b] and said[2] > 0 and said[4][1] then take_bid(record, said, b) end
  end
end
local function load(x) -- all records, whose bids are those of their reports
  local records, raw, reports = {}, call('HGETALL', x.keys[RECORDS]), call('HGETALL', x.keys[REPORTS])
  for i = 1, #raw, 2 do
    local each = unpacked(raw[i + 1])
    records[raw[i]] = {e = each[1], t = each[2], s = each[3], g = each[4], a = each[5], c = each[6], u = each[7], h = each[8],
                       p = each[9], w = each[10], r = each[11], l = each[12], at = each[13], v = each[14], k = each[15],
                       f = each[16] or '', b = {}}
  end
  for i = 1, #reports, 2 do
    local record = records[reports[i]]
    if record then take_bids(x, record, unpacked(reports[i + 1])[5]) end
  end
  return records
end

local function tally(x) -- what the state says of the records: some may have been evicted since it was written
  local s = x.s
  s.n, s.held = 0, {}
  for b = 1, x.bands do s.rates[b] = 0 end
  for _, record in pairs(x.records) do
    s.n = s.n + 1
    for backend, held in pairs(record.h) do s.held[backend] = (s.held[backend] or 0) + held end
    for b = 1, x.bands do s.rates[b] = s.rates[b] + (record.r[b] or 0) end
  end
  if not x.records[s.control] then s.control = '' end
end
local function measure(x) -- the seats in force, and how many unconfirmed grants they allow
  local c, seats, total = x.c, {}, 0
  for i, name in ipairs(c.backends) do
    seats[name] = x.s.seats[name] or c.seats[i]
    total = total + seats[name]
  end
  x.seats, x.total = seats, total
  x.most = c.unconfirmed_max > 0 and c.unconfirmed_max or max(2, floor(total / 8))
end

-- Another version of the rules (ledger_state.adapt)
local function adapt(x)
  local c, s = x.c, x.s
  if s.key ~= c.key then
    local fresh = s.key == ''
    for b = 1, x.bands do
      local rule, old = c.bands[b], 0
      if not fresh then old = s.gap[b] end
      s.gap[b] = rule.period > 0 and min(old, rule.join) or 0
      s.credit[b], s.due[b], s.out[b] = 0, 0, true
    end
    s.present, s.key = 0, c.key
  end
  s.version, s.late, s.due_back = c.version, 0, 0 -- the limits of time may have moved
  local auto, names = {}, {}
  for i, name in ipairs(c.backends) do names[name] = true; auto[name] = c.auto[i] end
  for name in pairs(s.seats) do if not auto[name] then s.seats[name] = nil end end
  for name in pairs(s.quotas) do if not c.quotas[name] then s.quotas[name] = nil end end
  measure(x)
  for _, tenant in ipairs(call('HKEYS', x.keys[BUDGETS])) do
    if not c.budgets[tenant] then call('HDEL', x.keys[BUDGETS], tenant); x.budgets[tenant] = nil end
  end
  s.held = {}
  for name, record in pairs(x.records) do
    local held, pending = {}, {}
    for backend, each in pairs(record.h) do
      if names[backend] then held[backend] = each; s.held[backend] = (s.held[backend] or 0) + each end
    end
    local last = record.v[#record.v]
    for _, grant in ipairs(record.p) do
      if names[grant[3]] then pending[#pending + 1] = grant end
      if not last or grant[1] > last[1] then record.v[#record.v + 1] = grant end
    end
    record.h, record.p, record.l = held, pending, #pending < x.most
    x.touched[name] = true
  end
end
