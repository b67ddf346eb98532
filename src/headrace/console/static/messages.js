import { live } from "./api.js";
import { badge, bytes, count, empty, h, moment, update } from "./dom.js";
import { ask, button, field, needsChanges } from "./page.js";
import { topicHead, topicTabs } from "./topics.js";

const TAIL_ROWS = 500;
const DEAD = {
  "headrace.reason": "why it was given up", "headrace.error": "what the handler raised", "headrace.error-type": "of what kind", "headrace.attempt": "how often it was tried",
  "headrace.failed-ms": "when it failed", "headrace.due-ms": "when it is tried again", "headrace.group": "the group that gave it up",
  "headrace.origin-topic": "where it was first", "headrace.origin-partition": "its partition there", "headrace.origin-offset": "its offset there", "headrace.origin-timestamp": "its time there",
};

function pretty(body) {
  if (body.format !== "json" || body.cut) return body.text;
  try { return JSON.stringify(JSON.parse(body.text), null, 2); } catch { return body.text; }
}

function hex(text) {
  const raw = atob(text);
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = [...raw.slice(at, at + 16)].map((one) => one.charCodeAt(0));
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(48)} ${part.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
  }
  return lines.join("\n");
}

function bodyOf(name, body) {
  if (!body) return h("p", { class: "note" }, `${name}: null`);
  return [h("h3", {}, name, " ", badge(body.format === "base64" ? "bytes" : body.format), " ", h("span", { class: "note" }, bytes(body.bytes), body.cut ? ", cut" : "")),
    h("pre", { class: "body", tabindex: "0" }, body.format === "base64" ? hex(body.text) : pretty(body))];
}

function details(context, one) {
  if (one.kind === "marker") return h("p", { class: "small" }, `A transaction marker: what producer ${one.producer.id} (epoch ${one.producer.epoch}) wrote to this partition in its transaction is ${one.marker === "commit" ? "committed" : "aborted"}. Consumers never see it.`);
  const region = h("div");
  const where = { topic: one.topic, partition: one.partition, offset: one.offset };
  const draw = (full) => update(region, bodyOf("Key", full.key), bodyOf("Value", full.value),
    full.headers.length ? [h("h3", {}, "Headers"), h("dl", { class: "facts" }, full.headers.map(([name, value]) => [h("dt", { class: "mono", title: DEAD[name] || null }, name), h("dd", { class: "mono" }, value ?? "null", DEAD[name] ? h("span", { class: "note" }, `  (${DEAD[name]})`) : null)]))] : null,
    h("p", { class: "note" }, full.compression ? `compressed with ${full.compression} · ` : "", full.producer ? `producer ${full.producer.id}, epoch ${full.producer.epoch}${full.transactional ? ", in a transaction" : ""} · ` : "", `leader epoch ${full.leader_epoch ?? "–"}`),
    h("div", { class: "row tight" },
      full.value?.cut || full.key?.cut ? button("Show all of it", async () => { try { draw(await context.get("message", where)); } catch (error) { update(region, h("div", { class: "problem" }, error.message)); } }) : null,
      full.headers.some(([name]) => name === "headrace.origin-topic") && full.headers.some(([name]) => name === "headrace.reason") ? needsChanges(context, button("Put it back", () => ask({ title: "Put this dead letter back", text: "It goes to the topic that it came from, and is tried afresh. It is put back once.", submit: "Put it back", act: async () => { const told = await context.post("change/put-back", where); region.prepend(h("div", { class: "done", role: "status" }, `It is in ${told.done.topic} again.`)); } }))) : null,
      h("a", { class: "btn", href: `${context.api}/download?${new URLSearchParams(where)}`, download: "" }, "Download the value")));
  draw(one);
  return region;
}

function preview(body) {
  if (!body) return h("span", { class: "soft" }, "null");
  if (body.format === "base64") return h("span", { class: "soft" }, `${bytes(body.bytes)} of bytes`);
  return h("span", { class: "preview mono" }, body.text.slice(0, 400));
}

function rowsOf(context, one, columns) {
  const more = h("tr", { hidden: true }, h("td", { colspan: columns }));
  const toggle = () => {
    if (more.hidden) { more.firstChild.replaceChildren(h("div", { class: "details" }, details(context, one))); more.hidden = false; row.classList.add("open"); opener.setAttribute("aria-expanded", "true"); }
    else { more.hidden = true; row.classList.remove("open"); opener.setAttribute("aria-expanded", "false"); }
  };
  const opener = h("button", { class: "btn", type: "button", "aria-expanded": "false", "aria-label": `Message ${one.partition}:${one.offset}`, onclick: (event) => { event.stopPropagation(); toggle(); } }, String(one.offset));
  const row = h("tr", { class: "pick", onclick: (event) => { if (!getSelection().toString() && !event.target.closest("a")) toggle(); } },
    h("td", { class: "at", title: moment(one.timestamp) }, h("span", { class: "wide-only" }, moment(one.timestamp).slice(0, 10), " "), moment(one.timestamp, false)), h("td", { class: "num number" }, String(one.partition)), h("td", { class: "num" }, opener),
    one.kind === "marker" ? [h("td", {}, badge(`transaction ${one.marker}`, one.marker === "commit" ? "good" : "warn")), h("td", { class: "soft small" }, `producer ${one.producer.id}`)]
      : [h("td", { class: "key" }, preview(one.key)), h("td", { class: "value" }, preview(one.value))]);
  return [row, more];
}

export function messagesPage(root, context, topic) {
  const rows = h("tbody"), status = h("div", { role: "status", class: "note status" }), problem = h("div"), after = h("div", { class: "pager" });
  const from = h("select", {}, [["newest", "the newest"], ["oldest", "the oldest"], ["offset", "an offset"], ["time", "a time"]].map(([value, title]) => h("option", { value }, title)));
  const offset = h("input", { type: "number", min: 0, value: "0" }), time = h("input", { type: "datetime-local", step: 1 });
  const offsetField = field("Offset", offset), timeField = field("Time (yours)", time);
  const partitions = h("input", { placeholder: "all", pattern: "[0-9, ]*", size: 8 });
  const text = h("input", { placeholder: "in key or value", autocomplete: "off" }), filter = h("input", { placeholder: 'value.amount > 100 and headers.source == "till"', spellcheck: "false", autocomplete: "off", class: "mono" });
  const key = h("input", { placeholder: "exactly", autocomplete: "off" });
  const committed = h("input", { type: "checkbox" }), markers = h("input", { type: "checkbox" });
  const shown = () => { offsetField.hidden = from.value !== "offset"; timeField.hidden = from.value !== "time"; };
  from.addEventListener("change", shown);
  shown();
  let left = "", found = 0, busy = null, stopTail = null, held = null, skipped = 0;

  const parameters = () => ({
    topic, from: from.value, offset: from.value === "offset" ? offset.value : "", time: from.value === "time" && time.value ? String(new Date(time.value).getTime()) : "",
    partitions: partitions.value.replaceAll(" ", ""), text: text.value, key: key.value, filter: filter.value, committed: committed.checked, markers: markers.checked, limit: 50,
  });

  const tell = (now) => {
    status.textContent = `${count(found)} shown, ${count(now.scanned)} looked at${now.cut ? "; the search stopped here, as it took long" : ""}`;
    update(after, h("span", { class: "grow" }), left ? button(now.cut ? "Go on searching" : "More", () => load(true)) : h("span", {}, found ? "That is all" : ""));
  };

  async function load(more = false) {
    endTail();
    busy?.abort();
    busy = new AbortController();
    if (!more) { found = 0; left = ""; }
    status.textContent = "Looking…";
    try {
      const now = await context.get("messages", more ? { ...parameters(), left } : parameters(), busy.signal);
      problem.replaceChildren();
      if (!more) rows.replaceChildren();
      rows.append(...now.messages.flatMap((one) => rowsOf(context, one, 5)));
      found += now.messages.length;
      left = now.left;
      if (!found) rows.replaceChildren(h("tr", {}, h("td", { colspan: 5 }, empty(left ? "Nothing found so far" : "No messages", left ? "Go on searching below." : "There is nothing here that is like that."))));
      tell(now);
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = "";
      problem.replaceChildren(h("div", { class: "problem", role: "alert" }, error.message));
    }
  }

  const tailButton = button("Watch live", () => (stopTail ? endTail() : beginTail()));
  const pause = button("Pause", () => {
    if (held) { const waiting = held; held = null; add(waiting); pause.textContent = "Pause"; } else { held = []; pause.textContent = "Go on"; }
  });
  pause.hidden = true;

  function add(messages) {
    if (held) { held.push(...messages); held.splice(0, Math.max(0, held.length - TAIL_ROWS)); pause.textContent = `Go on (${held.length} waiting)`; return; }
    if (!messages.length) return;
    if (!found) rows.replaceChildren();
    found += messages.length;
    rows.prepend(...[...messages].reverse().flatMap((one) => rowsOf(context, one, 5)));
    while (rows.children.length > TAIL_ROWS * 2) rows.lastChild.remove();
    status.textContent = `${count(found)} came${skipped ? `, ${count(skipped)} passed over as they came too fast` : ""}`;
  }

  function beginTail() {
    busy?.abort();
    found = 0; skipped = 0; held = null;
    rows.replaceChildren(h("tr", {}, h("td", { colspan: 5 }, empty("Waiting", "What is written from now on appears here."))));
    update(after);
    problem.replaceChildren();
    status.textContent = "Watching";
    tailButton.textContent = "Stop watching"; pause.hidden = false; pause.textContent = "Pause";
    stopTail = live(`${context.api}/tail`, { ...parameters(), from: "newest" }, {
      state() {}, problem(said) { problem.replaceChildren(h("div", { class: "problem", role: "alert" }, said)); },
      messages(now) { skipped += now.skipped; add(now.messages); },
    });
  }

  function endTail() {
    stopTail?.();
    stopTail = null;
    held = null;
    tailButton.textContent = "Watch live"; pause.hidden = true;
  }

  const produce = needsChanges(context, button("Produce", () => ask({
    title: `Produce to ${topic}`, submit: "Send",
    fields: [
      h("div", { class: "row" }, field("Key (empty: none)", h("input", { name: "key", autocomplete: "off" }), "grow"), field("Partition (empty: by key)", h("input", { name: "partition", type: "number", min: 0 }))),
      field("Value", h("textarea", { name: "value", spellcheck: "false" })),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "null" }), "null instead (a tombstone)"),
      field("Headers, a line each: name=value", h("textarea", { name: "headers", spellcheck: "false" })),
    ],
    act: async (given) => {
      const headers = Object.fromEntries(given.headers.split("\n").filter((one) => one.includes("=")).map((one) => [one.slice(0, one.indexOf("=")).trim(), one.slice(one.indexOf("=") + 1)]));
      const told = await context.post("change/produce", { topic, key: given.key || null, value: given.null ? null : given.value, partition: given.partition === "" ? null : Number(given.partition), headers });
      status.textContent = `written at partition ${told.done.partition}, offset ${told.done.offset}`;
    },
  })));
  const download = h("a", { class: "btn", href: "#", onclick: (event) => { event.preventDefault(); location.href = `${context.api}/download?${new URLSearchParams(Object.entries({ ...parameters(), limit: 500 }).filter(([, value]) => value && value !== true).concat(committed.checked ? [["committed", "1"]] : []))}`; } }, "Download");
  root.append(topicHead(context, topic), topicTabs(context, topic, "messages"), h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); load(); } },
    h("div", { class: "row" }, field("From", from), offsetField, timeField, field("Partitions", partitions), field("Text", text, "grow"), field("Key", key)),
    h("div", { class: "row" }, field("Filter", filter, "grow"), h("label", { class: "check" }, committed, "committed only"), h("label", { class: "check" }, markers, "transaction markers")),
    h("div", { class: "row tight" }, h("button", { class: "btn primary" }, "Show"), tailButton, pause, download, produce,
      h("details", {}, h("summary", {}, "What a filter can say"), h("p", { class: "note" }, "key, value, headers, offset, partition and timestamp; fields of JSON as value.card.brand or value.items[0]; comparisons, in, and, or, not; len, lower, contains, startswith, endswith, like(value, \"order*42\").")))),
    problem, status, h("div", { class: "panel flush" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" }, h("table", { class: "messages" }, h("thead", {}, h("tr", {}, ["Time", "Partition", "Offset", "Key", "Value"].map((one, at) => h("th", { scope: "col", class: at === 1 || at === 2 ? "num" : "" }, one)))), rows)), after));
  load();
  return () => { busy?.abort(); endTail(); };
}
