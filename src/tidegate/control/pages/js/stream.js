// The live numbers: one long answer of server-sent events, read with fetch because an EventSource
// does not tell why it was refused. Comes back by itself, and knows how old the last numbers are: a frozen screen must not look live.

const SILENT_MS = 4000; // a frame is due every half second
const FIRST_PAUSE_MS = 300;
const MOST_PAUSE_MS = 5000;

export class Stream {
  /** `on` maps names of events to functions; `denied(status, waitMs)` is told when the gateway lets nobody in. */
  constructor(on, denied) {
    this.on = on;
    this.denied = denied;
    this.lastAt = null;
    this.pause = FIRST_PAUSE_MS;
    this.abort = null;
    this.timer = null;
    this.heardAt = 0;
    setInterval(() => this.check(), 500);
    document.addEventListener("visibilitychange", () => this.check());
    window.addEventListener("online", () => this.restart());
  }

  /** Age of the last numbers in milliseconds, `null` before the first. */
  age() {
    return this.lastAt === null ? null : performance.now() - this.lastAt;
  }

  /** Connect anew at once. */
  restart() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.pause = FIRST_PAUSE_MS;
    this.open();
  }

  check() {
    if (this.abort !== null && performance.now() - this.heardAt > SILENT_MS) this.abort.abort();
  }

  async open() {
    const abort = new AbortController();
    this.abort = abort;
    this.heardAt = performance.now();
    let again = null;
    try {
      const options = { headers: { accept: "text/event-stream" }, cache: "no-store", credentials: "same-origin", signal: abort.signal };
      const response = await fetch("/admin/events", options);
      if (response.ok) await this.read(response.body.getReader());
      else again = this.refused(response);
    } catch {
      // the gateway is gone, or silent: below
    }
    if (this.abort !== abort) return; // restarted meanwhile
    this.abort = null;
    if (again === Infinity) return; // somebody has to sign in first
    this.timer = setTimeout(() => this.open(), again ?? this.pause);
    this.pause = Math.min(MOST_PAUSE_MS, this.pause * 2);
  }

  refused(response) {
    const wait = 1000 * Number(response.headers.get("retry-after") ?? 0);
    if (response.status === 401 || response.status === 403) {
      this.denied(response.status, 0);
      return Infinity;
    }
    if (response.status === 429) this.denied(response.status, wait);
    return wait || null;
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.heardAt = performance.now();
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) this.take(event);
    }
  }

  take(event) {
    const lines = event.split("\n");
    const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
    const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
    if (!name || !data || !(name in this.on)) return;
    if (name === "numbers") {
      this.lastAt = performance.now();
      this.pause = FIRST_PAUSE_MS;
    }
    this.on[name](JSON.parse(data));
  }
}
