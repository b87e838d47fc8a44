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
  for _, name in ipairs(backends) do if free[name] then return true end end
  return false
end
local function may_run(x, bid, free)
  if bid[4] and bid[4][1] and not allowed(bid[4], free) then return false end
  local tenant = bid[3][1][2]
  local budget = x.c.budgets[tenant]
  return not (budget and wait_ms(budget_bucket(x, tenant), budget, x.now) > 0)
end
-- Returns the record of the oldest ticket that may use a free seat and its replica, or nothing; whether there is any bid.
local function able(x, b, free)
  local any, best, replica, arrived = false, nil, nil, nil
  for name, record in pairs(x.records) do
    local bid = record.l and record.b[b]
    if bid then
      any = true
      local at = bid[2][1]
      if (not best or at < arrived or (at == arrived and record.e < best.e)) and may_run(x, bid, free) then
        best, replica, arrived = record, name, at
      end
    end
  end
  return best, replica, any
end
local function first(x, b, free) -- the record of the lowest counter, then the earliest arrival; its replica and counter
  local best, replica, least, arrived
  for name, record in pairs(x.records) do
    local bid = record.l and record.b[b]
    if bid and may_run(x, bid, free) then
      local head = bid[3][1]
      local value, at = counter_of(x, b, head[2]), head[1]
      if not best or value < least
        or (value == least and (at < arrived or (at == arrived and record.e < best.e))) then
        best, replica, least, arrived = record, name, value, at
      end
    end
  end
  return best, replica, least
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
  set_counter(x, b, tenant, counter + ticket[3] * (c.steps[tenant] or TOKEN))
  if s.grants % PRUNE_EVERY == 0 then
    call('ZREMRANGEBYSCORE', x.keys[counters_key(b)], '-inf', '(' .. text(s.clocks[b]))
    x.counters[b] = {}
  end
  if c.quotas[backend] then pour(quota_bucket(x, backend), ticket[3], 1) end
  if c.budgets[tenant] then pour(budget_bucket(x, tenant), ticket[3], 1) end
end
local function holds(x, free)
  local taken, held, least, firm, short = 0, {}, 0, -1, x.s.short or {}
  for _, name in ipairs(x.c.backends) do taken = taken + (x.s.held[name] or 0) end
  for b, rule in ipairs(x.c.bands) do
    if taken * PPM > rule.ceiling_ppm * x.total or free <= firm then held[b] = 'ceiling'
    else held[b] = free <= least and 'reserve' or false end
    local own = x.s.reserve[b] or rule.reserve
    least = max(least, own)
    if short[b] then firm = max(firm, own) end
  end
  return held
end
local function grant_one(x, me)
  local c, s = x.c, x.s
  local free, left = free_seats(x)
  if left <= 0 then return false end
  local claim, gated, oldest, owner = {}, {}, {}, {}
  for b = 1, x.bands do
    local record, name, any = able(x, b, free)
    claim[b] = any and (record and bid_of(c, b, x.now - record.b[b][2][1]) or 0)
    gated[b] = any and not record
    oldest[b], owner[b] = record, name
  end
  local held = holds(x, left)
  local wanted = c.discipline == 'weighted' and wanted_band(x, claim, gated, held) or nil
  local band, kind = choose(x, claim, gated, held, wanted)
  if not band then return false end
  local record, name, ticket, counter
  if kind == 'overtake' then
    record, name = oldest[band], owner[band]
    ticket = record.b[band][2]
    counter = counter_of(x, band, ticket[2])
  else
    record, name, counter = first(x, band, free)
    ticket = record.b[band][3][1]
  end
  local bid = record.b[band]
  local backend = backend_for(x, ticket, bid[4], free)
  local grant = {record.g + 1, band - 1, backend, kind, x.now}
  if name ~= me then
    local listens
    if x.test then listens = string.sub(name, 1, 1) ~= 'x'
    else listens = call(x.publish, x.channel .. name, pack({record.e, grant})) > 0 end
    x.touched[name] = true
    if not listens then -- nobody listens there: that process is gone; nothing was granted, no account has moved
      unbid(x, name, record)
      return true
    end
  end
  commit(x, band, kind, claim, gated, held)
  if c.discipline == 'weighted' then share(x, band, c.by_tokens and ticket[3] or 1, claim, gated, held) end
  record.g = grant[1]
  record.p[#record.p + 1] = grant
  s.due_back = min(s.due_back, x.now + c.recall_ms)
  hold(s, record, backend, 1)
  pay(x, band, kind, ticket, counter, backend)
  advance(bid, kind == 'overtake')
  if bid[1] <= 0 then record.b[band] = nil end
  if #record.p >= x.most then record.l = false end
  return true
end
