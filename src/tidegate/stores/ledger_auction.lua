-- The auction (ledger_auction.py)
local function free_seats(x)
  local free, total = {}, 0
  for _, name in ipairs(x.c.backends) do
    local left = x.seats[name] - (x.s.held[name] or 0)
    local quota = x.c.quotas[name]
    if left > 0 and not (quota and wait_ms(quota_bucket(x, name), quota, x.now) > 0) then
      free[name] = left; total = total + left
    end
  end
  return free, total
end
local function allowed(backends, free)
  if not backends or not backends[1] then return true end
  for _, name in ipairs(backends) do if free[name] then return true end end
  return false
end
local function entries(x, b) -- of the index of heads: {replica, arrival, epoch, tenant}
  local raw, list = call('HGETALL', x.keys[heads_key(b)]), {}
  for i = 1, #raw, 2 do
    local arrival, epoch, tenant = string.match(raw[i + 1], '^(%S+) (%S+) (.*)$')
    list[#list + 1] = {raw[i], tonumber(arrival), tonumber(epoch), tenant}
  end
  return list
end
-- Returns the arrival and the replica of the oldest ticket that may use a free seat, or nothing; whether there is any
-- bid; and those that may use one, where not all may.
local function able(x, b, free)
  if not x.picky then
    local first = call('ZRANGE', x.keys[oldest_key(b)], 0, 0, 'WITHSCORES')
    if not first[1] then return nil, nil, false end
    return tonumber(first[2]), first[1], true
  end
  local list, any, arrival, replica = {}, false, nil, nil
  for _, each in ipairs(entries(x, b)) do
    any = true
    local mask, budget = x.s.masks[each[1]], x.c.budgets[each[4]]
    if allowed(mask and mask[text(b)], free) and not (budget and wait_ms(budget_bucket(x, each[4]), budget, x.now) > 0) then
      list[each[1]] = each
    end
  end
  if any then -- in order of arrival, then of names
    for _, name in ipairs(call('ZRANGE', x.keys[oldest_key(b)], 0, -1)) do
      if list[name] then
        arrival, replica = tonumber(call('ZSCORE', x.keys[oldest_key(b)], name)), name
        break
      end
    end
  end
  local kept = {}
  for _, each in pairs(list) do kept[#kept + 1] = each end
  return arrival, replica, any, kept
end
local function counter_of(x, b, tenant)
  return max(tonumber(call('ZSCORE', x.keys[counters_key(b)], tenant) or 0), x.s.clocks[b])
end
local function first(x, b, list)
  list = list or entries(x, b)
  local tenants = {}
  for i, each in ipairs(list) do tenants[i] = each[4] end
  local values, best, least = call('ZMSCORE', x.keys[counters_key(b)], unpack(tenants)), nil, nil
  for i, each in ipairs(list) do
    local value = max(tonumber(values[i] or 0) or 0, x.s.clocks[b])
    if not best or value < least
      or (value == least and (each[2] < best[2] or (each[2] == best[2] and each[3] < best[3]))) then
      best, least = each, value
    end
  end
  return best[1], least
end
local function backend_for(x, ticket, backends, free)
  local best, may = nil, {}
  for _, name in ipairs(backends or {}) do may[name] = true end
  local all = next(may) == nil
  for _, name in ipairs(x.c.backends) do
    if free[name] and (all or may[name]) then
      if name == ticket[4] then return name end
      if not best or free[name] > free[best] then best = name end
    end
  end
  return best
end
local function pay(x, b, kind, ticket, counter, backend)
  local c, s, tenant = x.c, x.s, ticket[2]
  s.grants = s.grants + 1
  s.tokens[backend] = (s.tokens[backend] or 0) + ticket[3]
  if kind ~= 'overtake' then s.clocks[b] = max(s.clocks[b], counter) end
  call('ZADD', x.keys[counters_key(b)], text(counter + ticket[3] * (c.steps[tenant] or TOKEN)), tenant)
  if s.grants % PRUNE_EVERY == 0 then
    call('ZREMRANGEBYSCORE', x.keys[counters_key(b)], '-inf', '(' .. text(s.clocks[b]))
  end
  if c.quotas[backend] then pour(quota_bucket(x, backend), ticket[3], 1) end
  if c.budgets[tenant] then pour(budget_bucket(x, tenant), ticket[3], 1) end
end
local function holds(x, free)
  local taken, held, least = 0, {}, 0
  for _, name in ipairs(x.c.backends) do taken = taken + (x.s.held[name] or 0) end
  for b, rule in ipairs(x.c.bands) do
    if taken * PPM > rule.ceiling_ppm * x.total then held[b] = 'ceiling'
    else held[b] = free <= least and 'reserve' or false end
    least = max(least, x.s.reserve[b] or rule.reserve)
  end
  return held
end
local function grant_one(x, me)
  local c, s = x.c, x.s
  local free, left = free_seats(x)
  if left <= 0 then return false end
  local claim, gated, oldest, lists = {}, {}, {}, {}
  for b = 1, x.bands do
    local arrival, replica, any, list = able(x, b, free)
    claim[b] = any and (arrival and bid_of(c, b, x.now - arrival) or 0)
    gated[b] = any and not arrival
    oldest[b], lists[b] = replica, list
  end
  local held = holds(x, left)
  local wanted = c.discipline == 'weighted' and wanted_band(x, claim, gated, held) or nil
  local band, kind = choose(x, claim, gated, held, wanted)
  if not band then return false end
  local name, ticket, counter
  if kind == 'overtake' then
    name = oldest[band]
    ticket = load(x, name).b[band][2]
    counter = counter_of(x, band, ticket[2])
  else
    name, counter = first(x, band, lists[band])
    ticket = load(x, name).b[band][3][1]
  end
  local record = load(x, name)
  local bid = record.b[band]
  local backend = backend_for(x, ticket, bid[4], free)
  local grant = {record.g + 1, band - 1, backend, kind, x.now}
  if name ~= me then
    local listens
    if x.test then listens = string.sub(name, 1, 1) ~= 'x'
    else listens = call(x.publish, x.channel .. name, pack({record.e, grant})) > 0 end
    x.touched[name] = true
    if not listens then -- nobody listens there: that process is gone; nothing was granted, no account has moved
      record.b = {}
      unbid(x, name)
      return true
    end
  end
  commit(x, band, kind, claim, gated, held)
  if c.discipline == 'weighted' then share(x, band, c.by_tokens and ticket[3] or 1, claim, gated, held) end
  record.g = grant[1]
  record.p[#record.p + 1] = grant
  hold(s, record, backend, 1)
  pay(x, band, kind, ticket, counter, backend)
  advance(bid, kind == 'overtake')
  if bid[1] <= 0 then
    record.b[band] = nil
    hide(x, name, band)
    if s.masks[name] then s.masks[name][text(band)] = nil end
  elseif #record.p < x.most then show(x, name, record, band) end
  if #record.p >= x.most then unbid(x, name) end
  return true
end
