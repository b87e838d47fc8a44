// Backends, tenants, the last refusals, jobs: small tables, rebuilt only when what they show has changed.

import { fill, h } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";
import { t } from "./words.js";

function table(heads, rows) {
  if (!rows.length) return null;
  const head = heads.map(([key, kind]) => h("th", { scope: "col", class: kind ?? null, title: key === "engine" ? t("engine_help") : null }, key ? t(key) : ""));
  const line = (cells) => h("tr", {}, ...cells.map((cell, index) =>
    cell instanceof Node ? h("td", { class: heads[index][1] ?? null }, cell)
      : h("td", { class: heads[index][1] ?? null, title: heads[index][1] === "text" ? String(cell) : null }, String(cell))));
  return h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.map(line)));
}

function card(id, title) {
  const content = h("div", { id });
  return { content, element: h("section", { class: "card", "aria-label": title }, h("h2", {}, title), content) };
}

function put({ content }, heads, rows, none, last = null) {
  const words = (cell) => (cell instanceof Node ? `${cell.className} ${cell.textContent}` : cell);
  const key = JSON.stringify([document.documentElement.lang, rows.map((row) => row.map(words)), none, last?.textContent]);
  fill(content, key, () => [table(heads, rows) ?? h("p", { class: "none" }, none), ...(last === null ? [] : [last])]);
}

const tag = (kind, words) => h("span", { class: `tag ${kind}` }, words);

export class Lists {
  constructor() {
    this.backends = card("backends", t("backends"));
    this.pools = card("pools", t("pools"));
    this.pools.element.hidden = true;
    this.replicas = card("replicas", t("replicas"));
    this.replicas.element.hidden = true;
    this.tokens = card("tenants-tokens", t("most_tokens"));
    this.refused = card("tenants-refused", t("most_refused"));
    this.recent = card("refusals", t("recent"));
    this.jobs = card("jobs", t("jobs"));
    this.element = h("div", { class: "lists" }, this.backends.element,
      h("div", { class: "stack" }, this.replicas.element, this.jobs.element, this.pools.element),
      h("div", { class: "stack" }, this.tokens.element, this.refused.element), this.recent.element);
  }

  show(numbers) {
    this.showBackends(numbers);
    this.showPools(numbers);
    this.showReplicas(numbers);
    this.showTenants(numbers.tenants);
    this.showRefusals(numbers.refusals);
    this.showJobs(numbers.jobs);
  }

  showBackends({ backends: rows, waste }) {
    const quotas = rows.some((row) => row.budget !== null);
    put(this.backends, [["backend", "text"], ["state"], ["seats", "num"], ["kv", "num"], ["engine", "num"], ...(quotas ? [["budget", "num"]] : [])],
      rows.map((row) => [
        row.name, state(row), `${row.running} / ${row.seats}`, row.kv_free === null ? NONE : percent(Math.max(0, row.kv_free)),
        row.engine_running === null ? NONE : `${row.engine_running} +${row.engine_waiting ?? NONE}`,
        ...(quotas ? [percent(row.budget)] : []),
      ]), NONE, wasted(waste));
  }

  showPools({ pools, bands }) {
    this.pools.element.hidden = !pools.length;
    if (!pools.length) return;
    put(this.pools, [["pool", "text"], ["seats", "num"], ...bands.map(() => [null, "num"])],
      pools.map((pool) => [pool.name, `${pool.running} / ${pool.seats}`, ...pool.depths.map((depth, index) => `${bands[index].name} ${count(depth)}`)]), NONE);
  }

  /** Gateways that share the pools; hidden while this one is alone and is not meant to be. */
  showReplicas({ replicas, bands }) {
    const shown = replicas !== null && (replicas.number > 1 || replicas.degraded || replicas.differs.length > 0);
    this.replicas.element.hidden = !shown;
    if (!shown) return;
    const trouble = [
      ...(replicas.degraded ? [h("p", { class: "tag down bad", id: "replicas-degraded" }, t("replicas_degraded"))] : []),
      ...(replicas.rows.some((row) => row.same_name) ? [h("p", { class: "tag down bad", id: "replicas-same-name" }, t("replicas_same_name"))] : []),
      ...replicas.differs.map((pool) => h("p", { class: "tag down warn replicas-differ" }, differing(pool))),
    ];
    put(this.replicas, [["replica", "text"], ["state"], ["seats", "num"], ...bands.map(() => [null, "num"])],
      replicas.rows.map((row) => [
        row.name,
        replicaState(row), row.seats,
        ...row.waiting.map((depth, index) => `${bands[index]?.name} ${count(depth)}`),
      ]), NONE, trouble.length ? h("div", {}, ...trouble) : null);
  }

  showTenants({ tokens, refused }) {
    put(this.tokens, [["tenant", "text"], ["by_tokens", "num"]], tokens.slice(0, 4).map(([name, number]) => [name, count(number)]), t("nobody"));
    put(this.refused, [["tenant", "text"], ["by_refusals", "num"]], refused.slice(0, 4).map(([name, number]) => [name, count(number)]), t("nobody"));
  }

  showRefusals(rows) {
    put(this.recent, [["when", "num"], ["band"], ["tenant", "text"], ["reason"], ["status"], ["retry_after", "num"], ["request", "text"]],
      rows.map((row) => [
        ago(row.age_s), row.band || NONE, row.tenant || NONE, row.reason,
        row.status === 200 ? t("fallback") : row.status, row.retry_after_s === null ? NONE : `${row.retry_after_s} ${t("s")}`, row.id,
      ]), t("refused_none"));
  }

  showJobs(jobs) {
    if (jobs === null) return put(this.jobs, [], [], t("jobs_off"));
    if (jobs.error) return put(this.jobs, [], [], t("jobs_error"));
    const rows = jobs.batches.map((batch) => {
      const done = batch.completed + batch.failed + batch.dead;
      const failed = batch.failed + batch.dead ? ` · ${t("failed_rows", { n: count(batch.failed + batch.dead) })}` : "";
      const progress = batch.total ? `${percent(done / batch.total)} · ${count(done)}/${count(batch.total)}${failed}` : batch.state;
      return [batch.id.replace(/^batch_/, ""), batch.tenant, batch.band, progress];
    });
    const dead = h("p", {}, h("span", { id: "dead-letters", class: jobs.dead ? "tag down bad" : "soft" }, t("dead", { n: count(jobs.dead) })),
      h("span", { class: "soft" }, ` · ${t("rows_waiting", { n: count(jobs.waiting) })}`));
    return put(this.jobs, [["batch", "text"], ["tenant", "text"], ["band"], ["progress", "num"]], rows, t("no_jobs"), dead);
  }
}

/** What the engines computed for nothing; of its causes the line shows the first two, what hovers over it all. */
function wasted({ tokens, part, causes }) {
  const words = Object.entries(causes).map(([cause, number]) => `${t(`cause_${cause}`)} ${count(number)}`);
  const say = (some) => (tokens ? t("wasted", { part: percent(part, 2), causes: some.join(t("comma")) }) : t("wasted_none"));
  return h("p", { id: "waste", class: "soft", title: say(words) }, say(words.slice(0, 2)));
}

function replicaState(row) {
  if (row.lost) return tag("down bad", t("lost", { n: seconds(Math.floor(row.seen_s)) }));
  if (row.same_name) return tag("down bad", t("same_name"));
  if (row.differs) return tag("old warn", t("differs"));
  return tag("up good", t(row.own ? "this_one" : "up"));
}

/** How this gateway's file differs from the one whose backends the pool deals. */
function differing(pool) {
  const parts = ["not_dealt", "unknown", "seats"].filter((key) => pool[key].length);
  return t("differing", { pool: pool.pool, what: parts.map((key) => t(`differing_${key}`, { names: pool[key].join(t("comma")) })).join(t("comma")) });
}

function ago(age) {
  if (age < 1) return `<1 ${t("s")}`;
  return seconds(age < 60 ? Math.floor(age) : 60 * Math.floor(age / 60));
}

function state(row) {
  if (!row.up) return tag("down bad", t("down"));
  if (row.paused_s !== null) return tag("pause warn", t("paused", { n: seconds(Math.ceil(row.paused_s)) }));
  return row.stale ? tag("old warn", t("stale_short")) : tag("up good", t("up"));
}
