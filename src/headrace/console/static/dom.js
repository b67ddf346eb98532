// Elements, numbers and times. Whatever comes from a cluster becomes text nodes here, never markup.

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (name === "checked" || name === "disabled" || name === "selected" || name === "required") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}

const whole = new Intl.NumberFormat("en-US");

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function rate(value, unit = "/s") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return (size >= 100 ? whole.format(Math.round(value)) : size >= 10 ? value.toFixed(0) : size === 0 ? "0" : size < 0.05 ? "< 0.1" : value.toFixed(1)) + " " + unit;
}

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.05) return "0 s";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(value < 36000 ? 1 : 0)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function moment(ms, withDate = true) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  const pad = (number, size = 2) => String(number).padStart(size, "0");
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return withDate ? `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}` : `${time}.${pad(at.getMilliseconds(), 3)}`;
}

export function trend(value) {
  if (value === null || value === undefined) return h("span", { class: "soft" }, "–");
  if (Math.abs(value) < 0.5) return h("span", { class: "soft" }, "steady");
  return value > 0
    ? h("span", { class: "bad-text" }, `↗ +${rate(value)}`)
    : h("span", { class: "good-text" }, `↘ ${rate(value)}`);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function stateBadge(state) {
  const kind = { Stable: "good", Empty: "", Dead: "bad", Ongoing: "accent", CompleteCommit: "good", CompleteAbort: "" }[state];
  return badge(state || "unknown", kind === undefined ? "warn" : kind);
}

export function figure(name, value, more = "", kind = "") {
  return h("div", { class: `figure ${kind}` }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), more ? h("div", { class: "more" }, more) : null);
}

export function spark(points, label) {
  // Points are [x, y]; the line fills its box, whatever its size.
  if (points.length < 2) return h("p", { class: "note" }, "A line appears here once there is more than one sample.");
  const xs = points.map((one) => one[0]);
  const low = Math.min(...xs), span = Math.max(...xs) - low || 1, top = Math.max(...points.map((one) => one[1]), 1);
  const at = points.map(([x, y]) => `${(((x - low) / span) * 600).toFixed(1)},${(58 - (y / top) * 54).toFixed(1)}`);
  const line = svg("svg", { class: "spark", viewBox: "0 0 600 60", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("path", { class: "area", d: `M${at[0]} L${at.join(" L")} L600,60 L0,60 Z` }), svg("path", { class: "line", d: `M${at.join(" L")}` }));
  const most = Math.max(...points.map((one) => one[1]));
  return [line, h("div", { class: "scale note" }, h("span", {}, `${seconds(span)} ago`), h("span", {}, `at most ${count(most)}`), h("span", {}, "now"))];
}

export function meter(share, label, kind = "") {
  const width = Math.max(0, Math.min(100, share * 100));
  return svg("svg", { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "track", width: 100, height: 8, rx: 2 }), svg("rect", { class: `fill ${kind}`, width, height: 8, rx: 2 }));
}

export function table(columns, rows, { caption, empty, sort, onsort, row: rowOf, stack } = {}) {
  // columns: {name, title, num, cell(row), sort}. The first column heads its row. `stack`: where the screen is narrow,
  // a row is a block with a line for each cell.
  if (!rows.length && empty) return empty;
  const head = columns.map((one) => {
    const props = { scope: "col", class: one.num ? "num" : "" };
    if (!one.sort || !onsort) return h("th", props, one.title);
    const isNow = sort && sort.by === one.sort;
    props["aria-sort"] = isNow ? (sort.desc ? "descending" : "ascending") : "none";
    return h("th", props, h("button", { type: "button", "data-focus": `sort-${one.sort}`, onclick: () => onsort({ by: one.sort, desc: isNow ? !sort.desc : Boolean(one.num) }) }, one.title));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: stack ? "stack" : null }, h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map((row) => h("tr", rowOf ? rowOf(row) : {}, columns.map((one, at) => h(at ? "td" : "th", { class: [one.num ? "num" : "", at ? "" : "name"].join(" ").trim(), scope: at ? null : "row", "data-title": stack && at ? one.title : null }, one.cell(row))))))));
}

export function empty(title, text = "") {
  return h("div", { class: "empty" }, h("strong", {}, title), text);
}

export function update(region, ...nodes) {
  // Replace what a region shows; who was in it stays where they were.
  const focused = region.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  region.replaceChildren(...nodes.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  region.querySelectorAll(".scroll").forEach((one, at) => { if (scrolled[at]) one.scrollLeft = scrolled[at]; });
  if (focused) region.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}
