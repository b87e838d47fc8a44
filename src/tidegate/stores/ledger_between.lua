-- The rule between bands (core.between, core.shares, core.claims)
local function score(rule, age) return rule.weight + rule.aging * age end
local function bid_of(c, b, age)
  local rule = c.bands[b]
  local own = score(rule, age)
  if rule.promote_after_ms == 0 or age <= rule.promote_after_ms then return own end
  if c.discipline ~= 'aging' then return 2 * #c.bands - (b - 1) end
  return max(own, score(c.bands[b - 1], age))
end
local function by_slack(one, other) return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2]) end
local function choose(x, claim, gated, held, wanted)
  local c, s, due, top = x.c, x.s, {}, nil
  local late = false
  for b = 1, x.bands do
    if claim[b] and not gated[b] then
      if c.bands[b].period > 0 then due[#due + 1] = {c.bands[b].period - 1 - s.gap[b], b} end
      if not top and not held[b] then top = b end
    end
  end
  table.sort(due, by_slack)
  for place, each in ipairs(due) do if each[1] <= place - 1 then late = true; break end end
  if late then return due[1][2], 'floor' end
  if not top then return nil end
  local best
  for b = 1, x.bands do
    if claim[b] and not gated[b] and (not held[b] or (held[b] == 'reserve' and b > top)) then
      if not best or claim[b] > claim[best] then best = b end
    end
  end
  if best ~= top and s.credit[top] + c.earn >= c.unit then return best, 'overtake' end
  return wanted or top, 'turn'
end
local function commit(x, band, kind, claim, gated, held)
  local c, s, top, contended = x.c, x.s, nil, false
  for b = 1, x.bands do
    local live = claim[b] and not gated[b]
    if b == band or not claim[b] then s.gap[b] = 0
    elseif live then s.gap[b] = s.gap[b] + 1
    else s.gap[b] = min(s.gap[b], c.bands[b].join) end
    if live then
      if top then contended = true elseif not held[b] then top = b end
    end
  end
  if top and contended then
    s.credit[top] = min(c.unit, s.credit[top] + c.earn)
    if kind == 'overtake' then s.credit[top] = s.credit[top] - c.unit end
  end
end
local function wanted_band(x, claim, gated, held)
  local s, best, least = x.s, nil, 0
  for b = 1, x.bands do
    if claim[b] and not gated[b] and not held[b] then
      local due = s.out[b] and max(s.due[b], s.present) or s.due[b]
      if not best or due < least then best, least = b, due end
    end
  end
  return best
end
local function share(x, band, cost, claim, gated, held)
  local s, least = x.s, nil
  for b = 1, x.bands do
    local away = not claim[b] or gated[b] or held[b] ~= false
    if not away then
      if s.out[b] then s.due[b] = max(s.due[b], s.present) end
      least = least and min(least, s.due[b]) or s.due[b]
    end
    s.out[b] = away and true or false
  end
  s.present = max(s.present, least or 0)
  s.due[band] = max(s.due[band], s.present + cost * x.c.bands[band].step)
end
