import { badge, bytes, count, empty, figure, h, rate, table, update } from "./dom.js";
import { ask, button, field, follow, heading, later, mark, needsChanges } from "./page.js";

export function pager(state, page, go) {
  return h("div", { class: "pager" }, h("span", {}, `${count(state.total)} in all`), h("span", { class: "grow" }),
    state.pages > 1 ? [
      h("button", { class: "btn", type: "button", "data-focus": "previous", disabled: page <= 0, onclick: () => go(page - 1) }, "Previous"),
      h("span", {}, `${page + 1} of ${count(state.pages)}`),
      h("button", { class: "btn", type: "button", "data-focus": "next", disabled: page + 1 >= state.pages, onclick: () => go(page + 1) }, "Next")] : null);
}

export function topicsPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div", { class: "panel flush" });
  const wanted = { search: "", internal: false, sort: "name", desc: false, page: 0 };
  let stop = null;
  const again = () => {
    stop?.();
    stop = follow(context, "topics", wanted, region, (now) => [table([
      { title: "Topic", sort: "name", cell: (one) => [h("a", { href: context.link("topics", one.name) }, one.name), one.internal ? [" ", badge("internal")] : null] },
      { title: "Partitions", num: true, sort: "partitions", cell: (one) => count(one.partitions) },
      { title: "Replicas", num: true, cell: (one) => count(one.replicas) },
      { title: "Health", sort: "health", cell: (one) => one.offline ? badge(`${one.offline} offline`, "bad") : one.under_replicated ? badge(`${one.under_replicated} under-replicated`, "warn") : badge("in sync", "good") },
      { title: "Records in", num: true, sort: "rate", cell: (one) => rate(one.records_per_second) },
      { title: "On disk", num: true, sort: "bytes", cell: (one) => bytes(one.bytes) },
    ], now.rows, {
      caption: "Topics", sort: { by: wanted.sort, desc: wanted.desc }, onsort: (sort) => { wanted.sort = sort.by; wanted.desc = sort.desc; wanted.page = 0; again(); },
      empty: wanted.search ? empty("No topic is called that", `None of ${count(now.all)} topics has “${wanted.search}” in its name.`) : empty("There are no topics", "Create one here, or with: headrace topic create events"),
    }), pager(now, now.page, (page) => { wanted.page = page; again(); })], light, problem);
  };
  const search = h("input", { type: "search", placeholder: "part of a name", oninput: later(() => { wanted.search = search.value; wanted.page = 0; again(); }) });
  const internal = h("input", { type: "checkbox", onchange: () => { wanted.internal = internal.checked; wanted.page = 0; again(); } });
  const create = needsChanges(context, button("Create a topic", () => ask({
    title: "Create a topic", submit: "Create",
    fields: [
      field("Name", h("input", { name: "topic", required: true, pattern: "[a-zA-Z0-9._\\-]+", maxlength: 249, autocomplete: "off" })),
      h("div", { class: "row" }, field("Partitions (empty: the cluster's default)", h("input", { name: "partitions", type: "number", min: 1 }), "grow"), field("Replicas (empty: the default)", h("input", { name: "replicas", type: "number", min: 1 }), "grow")),
      field("Configuration, a line each: retention.ms=3600000", h("textarea", { name: "configs", spellcheck: "false" })),
    ],
    act: async (given) => {
      const configs = Object.fromEntries(given.configs.split("\n").filter((one) => one.trim()).map((one) => { const at = one.indexOf("="); return [one.slice(0, at).trim(), one.slice(at + 1).trim()]; }));
      await context.post("change/create-topic", { topic: given.topic, partitions: given.partitions ? Number(given.partitions) : -1, replicas: given.replicas ? Number(given.replicas) : -1, configs });
      location.hash = context.link("topics", given.topic);
    },
  }), "primary"));
  root.append(heading("Topics", { liveMark: light.node, actions: [create] }), problem,
    h("div", { class: "panel" }, h("div", { class: "row" }, field("Search", search, "grow"), h("label", { class: "check" }, internal, "Kafka's own topics"))), region);
  again();
  return () => stop?.();
}

export function topicTabs(context, name, active) {
  const tabs = [["partitions", "Partitions"], ["messages", "Messages"], ["configs", "Configuration"], ["groups", "Groups"]];
  return h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, tabs.map(([tab, title]) => h("a", { href: context.link("topics", name, tab), "aria-current": tab === active ? "page" : null }, title)));
}

export function topicHead(context, name, light) {
  return heading(name, { liveMark: light?.node, crumb: h("a", { href: context.link("topics") }, "Topics") });
}

export function topicPage(root, context, name, tab = "partitions") {
  const light = mark(), problem = h("div"), figures = h("div"), region = h("div");
  root.append(topicHead(context, name, tab === "configs" ? null : light), topicTabs(context, name, tab), problem);
  if (tab === "configs") { root.append(region); configs(region, context, name); return null; }
  root.append(figures, region);
  const stop = follow(context, "topic", { name }, region, (now) => {
    const rows = now.partitions;
    const records = rows.reduce((sum, one) => sum + ((one.end ?? 0) - (one.start ?? 0)), 0);
    const rates = rows.map((one) => one.records_per_second).filter((one) => one !== null);
    update(figures, h("div", { class: "figures" },
      figure("Partitions", count(rows.length), `${rows[0]?.replicas.length ?? 0} replicas each`),
      figure("Offsets", count(records), "between start and end"),
      figure("Records in", rates.length ? rate(rates.reduce((one, other) => one + other, 0)) : "–"),
      figure("On leaders' disks", bytes(rows.reduce((sum, one) => sum + (one.bytes ?? 0), 0))),
      figure("Groups", count(now.groups.length), now.groups[0] ? `${count(now.groups[0].lag)} behind at most` : "nobody reads it")));
    if (tab === "groups") return h("div", { class: "panel flush" }, table([
      { title: "Group", cell: (one) => h("a", { href: context.link("groups", one.group) }, one.group) },
      { title: "Partitions", num: true, cell: (one) => count(one.partitions) },
      { title: "Lag", num: true, cell: (one) => count(one.lag) },
    ], now.groups, { caption: "Groups that read the topic", empty: empty("Nobody reads it", "No group has committed an offset of this topic.") }));
    return [h("div", { class: "panel flush" }, table([
      { title: "Partition", cell: (one) => String(one.partition) },
      { title: "Leader", cell: (one) => one.leader < 0 ? badge("none", "bad") : String(one.leader) },
      { title: "Replicas", cell: (one) => one.replicas.map((node, at) => [at ? ", " : "", one.isr.includes(node) ? String(node) : h("span", { class: "warn-text", title: "not in sync" }, `${node} (behind)`)]) },
      { title: "First offset", num: true, cell: (one) => count(one.start) },
      { title: "Next offset", num: true, cell: (one) => count(one.end) },
      { title: "Records in", num: true, cell: (one) => rate(one.records_per_second) },
      { title: "On disk", num: true, cell: (one) => bytes(one.bytes) },
      ...(rows.some((one) => one.compacted_to !== null) ? [{ title: "Compacted to", num: true, cell: (one) => one.uncleanable ? badge("cannot be compacted", "bad") : one.compacted_to === null ? "–" : [count(one.compacted_to), h("span", { class: "soft" }, one.end === null || one.end <= one.compacted_to ? "" : `, ${count(one.end - one.compacted_to)} to go`)] }] : []),
    ], rows, { caption: "Partitions" })), actions(context, now)];
  }, light, problem);
  return stop;
}

function actions(context, now) {
  if (now.internal) return null;
  const confirmed = (title, text, submit, change) => ask({ title, text, submit, danger: true, confirm: now.name, act: async (given) => { await context.post(`change/${change}`, { topic: now.name, confirm: given.confirm }); if (change === "delete-topic") location.hash = context.link("topics"); } });
  return h("div", { class: "row" },
    needsChanges(context, button("Add partitions", () => ask({ title: "Add partitions", text: "Keys go to other partitions from then on; partitions are never taken away.", submit: "Add", fields: [field("How many there shall be", h("input", { name: "partitions", type: "number", min: now.partitions.length + 1, value: now.partitions.length + 1, required: true }))], act: (given) => context.post("change/add-partitions", { topic: now.name, partitions: Number(given.partitions) }) }))),
    needsChanges(context, button("Delete all records", () => confirmed("Delete all records", "The topic stays; what is in it now is gone for good.", "Delete the records", "truncate-topic"), "danger")),
    needsChanges(context, button("Delete the topic", () => confirmed("Delete the topic", "The topic and all its records are gone for good.", "Delete", "delete-topic"), "danger")));
}

async function configs(region, context, name) {
  try {
    const rows = await context.get("topic-configs", { name });
    const change = (one) => ask({
      title: one.name, text: one.documentation || "", submit: "Set",
      fields: [field("Value (empty: the default)", h("input", { name: "value", value: one.is_default ? "" : one.value ?? "", autocomplete: "off" }))],
      act: async (given) => { await context.post("change/set-config", { topic: name, name: one.name, value: given.value === "" ? null : given.value }); await configs(region, context, name); },
    });
    update(region, h("div", { class: "panel flush" }, table([
      { title: "Key", cell: (one) => h("span", { title: one.documentation || null }, one.name) },
      { title: "Value", cell: (one) => one.sensitive ? h("span", { class: "soft" }, "secret") : h("span", { class: `mono ${one.is_default ? "soft" : ""}` }, one.value === "" || one.value === null ? "(empty)" : one.value) },
      { title: "From", cell: (one) => one.is_default ? h("span", { class: "soft" }, "default") : badge(one.source, "accent") },
      { title: "Default", cell: (one) => h("span", { class: "mono soft" }, one.default ?? "") },
      { title: "Action", cell: (one) => one.read_only ? null : needsChanges(context, h("button", { class: "btn", type: "button", "aria-label": `Change ${one.name}`, onclick: () => change(one) }, "Change")) },
    ], rows, { caption: "Configuration", stack: true })));
  } catch (error) { update(region, h("div", { class: "problem", role: "alert" }, error.message)); }
}
