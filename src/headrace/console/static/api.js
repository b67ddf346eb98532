// What the server is asked, and what it tells while a page is open.

export class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

async function answer(response) {
  let body = null;
  try { body = await response.json(); } catch { /* said below */ }
  if (!response.ok) throw new Refused(body?.error || `the console answers ${response.status}`, response.status);
  return body;
}

export function query(parameters) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== "" && value !== null && value !== undefined && value !== false) found.set(name, value === true ? "1" : value);
  const text = found.toString();
  return text ? `?${text}` : "";
}

export const get = async (path, parameters = {}, signal = undefined) => answer(await fetch(path + query(parameters), { signal }));

export const post = async (path, body) =>
  answer(await fetch(path, { method: "POST", headers: { "content-type": "application/json", "x-headrace-console": "1" }, body: JSON.stringify(body) }));

export function live(path, parameters, { state, problem, ...others }) {
  // Server-sent events; the browser comes back by itself. What is hidden does not listen.
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(path + query(parameters));
    source.addEventListener("state", (one) => state(JSON.parse(one.data)));
    source.addEventListener("problem", (one) => problem?.(JSON.parse(one.data).error));
    for (const [kind, told] of Object.entries(others)) source.addEventListener(kind, (one) => told(JSON.parse(one.data)));
    source.onerror = () => { if (source?.readyState === EventSource.CLOSED) { close(); problem?.("the console does not answer"); } };
  };
  const close = () => { source?.close(); source = null; };
  const look = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", look);
  open();
  return () => { document.removeEventListener("visibilitychange", look); close(); };
}
