#!lua name=@LIBRARY@
-- The ledger of shared pools inside the store (Valkey, or Redis 7 and later). It decides as ledger_model.py does, whose
-- words it uses; a test feeds both the same reports and compares whole replies. All numbers are whole.
-- KEYS, all with one hash tag: rules, state, replicas (records), seen (by time), pending (by time of the oldest
-- unconfirmed grant), budgets, document; then per band: heads (replica -> arrival, epoch, tenant), oldest (replica by
-- arrival), counters (tenant). A replica stands in heads and oldest while its bid counts.
-- Record: e epoch, t seen, s sequence, g last grant, a ack, c last charge, u average use, h held, p unconfirmed grants,
-- b bids {count, oldest, heads, backends} with tickets {arrival, tenant, work, prefer}, w waiting, r rates.
local PPM, TOKEN, BUCKET, DRAIN, DEPTH, USE_MS = 1000000, 1000, 3600000, 59, 60000, 30000
local GRANTS_MAX, PRUNE_EVERY = 64, 256
local RULES, STATE, REPLICAS, SEEN, PENDING, BUDGETS, DOCUMENT = 1, 2, 3, 4, 5, 6, 7
-- The libraries are there when a function runs, not yet when it is loaded.
local function floor(number) return math.floor(number) end
local function max(one, other) return one > other and one or other end
local function min(one, other) return one < other and one or other end
local function call(...) return redis.call(...) end
local function pack(value) return cmsgpack.pack(value) end
local function unpacked(text) return cmsgpack.unpack(text) end
local function heads_key(b) return 5 + 3 * b end
local function oldest_key(b) return 6 + 3 * b end
local function counters_key(b) return 7 + 3 * b end
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
             due = {}, out = {}, present = 0, clocks = {}, grants = 0, tokens = {}, seats = {}, reserve = {}, control = '',
             quotas = {}, late = 0, due_back = 0, n = 0, use = 0, held = {}, rates = {}, masks = {}}
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
  return bucket
end

-- Records and their bids
local function unbid(x, name)
  for b = 1, x.bands do call('HDEL', x.keys[heads_key(b)], name); call('ZREM', x.keys[oldest_key(b)], name) end
  x.s.masks[name] = nil
end
local function show(x, name, record, b) -- the bid in the two indexes
  local bid = record.b[b]
  local head = bid[3][1]
  call('HSET', x.keys[heads_key(b)], name, text(head[1]) .. ' ' .. text(record.e) .. ' ' .. head[2])
  call('ZADD', x.keys[oldest_key(b)], text(bid[2][1]), name)
end
local function hide(x, name, b)
  call('HDEL', x.keys[heads_key(b)], name); call('ZREM', x.keys[oldest_key(b)], name)
end
local function save(x, name, record)
  call('HSET', x.keys[REPLICAS], name, pack(record))
  if record.p[1] then call('ZADD', x.keys[PENDING], text(record.p[1][5]), name) else call('ZREM', x.keys[PENDING], name) end
end
local function load(x, name)
  local record = x.cache[name]
  if not record then
    local raw = call('HGET', x.keys[REPLICAS], name)
    record = raw and unpacked(raw)
    x.cache[name] = record
  end
  return record
end
local function hold(s, record, backend, count)
  record.h[backend] = (record.h[backend] or 0) + count
  s.held[backend] = (s.held[backend] or 0) + count
end
local function drop(x, name)
  local s, record = x.s, load(x, name)
  if not record then return end
  for backend, held in pairs(record.h) do s.held[backend] = s.held[backend] - held end
  for b = 1, x.bands do s.rates[b] = s.rates[b] - (record.r[b] or 0) end
  s.use = s.use - record.u; s.n = s.n - 1
  if s.control == name then s.control = '' end
  unbid(x, name); x.cache[name] = nil
  call('HDEL', x.keys[REPLICAS], name); call('ZREM', x.keys[SEEN], name); call('ZREM', x.keys[PENDING], name)
end
local function recall(x, me)
  local late = call('ZRANGEBYSCORE', x.keys[PENDING], '-inf', text(x.now - x.c.recall_ms))
  for _, name in ipairs(late) do
    if name ~= me then
      local record = load(x, name)
      for _, grant in ipairs(record.p) do hold(x.s, record, grant[3], -1) end
      record.p, record.b = {}, {}
      unbid(x, name); save(x, name, record)
    end
  end
  local first = call('ZRANGE', x.keys[PENDING], 0, 0, 'WITHSCORES')
  x.s.due_back = (tonumber(first[2]) or x.now) + x.c.recall_ms -- nothing is to be taken back before
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
    if not c.budgets[tenant] then call('HDEL', x.keys[BUDGETS], tenant) end
  end
  s.held = {}
  for _, replica in ipairs(call('HKEYS', x.keys[REPLICAS])) do
    local record = load(x, replica)
    local held, pending = {}, {}
    for name, count in pairs(record.h) do
      if names[name] then held[name] = count; s.held[name] = (s.held[name] or 0) + count end
    end
    for _, grant in ipairs(record.p) do if names[grant[3]] then pending[#pending + 1] = grant end end
    record.h, record.p = held, pending
    save(x, replica, record)
    unbid(x, replica)
    if #pending < x.most then
      for b = 1, x.bands do
        if record.b[b] then
          show(x, replica, record, b)
          if record.b[b][4][1] then
            s.masks[replica] = s.masks[replica] or {}
            s.masks[replica][text(b)] = record.b[b][4]
          end
        end
      end
    end
  end
end
