import { badge, count, empty, figure, h, moment, rate, seconds, spark, stateBadge, table, trend, update } from "./dom.js";
import { ask, button, field, follow, heading, later, mark, needsChanges } from "./page.js";
import { pager } from "./topics.js";

export function groupsPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div", { class: "panel flush" });
  const wanted = { search: "", sort: "lag", desc: true, page: 0 };
  let stop = null;
  const again = () => {
    stop?.();
    stop = follow(context, "groups", { ...wanted, desc: wanted.desc ? "1" : "0" }, region, (now) => [table([
      { title: "Group", sort: "group", cell: (one) => h("a", { href: context.link("groups", one.group) }, one.group) },
      { title: "State", sort: "state", cell: (one) => stateBadge(one.state) },
      { title: "Kind", sort: "type", cell: (one) => one.type },
      { title: "Lag", num: true, sort: "lag", cell: (one) => count(one.lag) },
      { title: "In time", num: true, sort: "seconds", cell: (one) => one.lag === null ? "–" : one.seconds === null ? "…" : seconds(one.seconds) },
      { title: "Trend", num: true, sort: "trend", cell: (one) => trend(one.trend) },
      { title: "Topics", cell: (one) => one.topics.map((name, at) => [at ? ", " : "", h("a", { href: context.link("topics", name) }, name)]) },
    ], now.rows, {
      caption: "Groups", sort: { by: wanted.sort, desc: wanted.desc }, onsort: (sort) => { wanted.sort = sort.by; wanted.desc = sort.desc; wanted.page = 0; again(); },
      empty: wanted.search ? empty("No group is called that") : empty("There are no groups", "A consumer with a group.id makes one."),
    }), pager(now, now.page, (page) => { wanted.page = page; again(); })], light, problem);
  };
  const search = h("input", { type: "search", placeholder: "part of a name", oninput: later(() => { wanted.search = search.value; wanted.page = 0; again(); }) });
  root.append(heading("Groups", { liveMark: light.node }), problem, h("div", { class: "panel" }, h("div", { class: "row" }, field("Search", search, "grow"))), region);
  again();
  return () => stop?.();
}

const TABS = [["members", "Who owns what"], ["lag", "Lag"], ["history", "History"], ["what-if", "What if"], ["reset", "Reset"]];

export function groupPage(root, context, name, tab = "members") {
  const light = mark(), problem = h("div"), region = h("div");
  root.append(heading(name, { liveMark: light.node, crumb: h("a", { href: context.link("groups") }, "Groups") }),
    h("nav", { class: "tabs", "aria-label": "Parts of the group" }, TABS.map(([one, title]) => h("a", { href: context.link("groups", name, one), "aria-current": one === tab ? "page" : null }, title))), problem);
  if (tab === "reset") { light.node.remove(); root.append(region); reset(region, context, name); return null; }
  if (tab === "what-if") { light.node.remove(); root.append(region); whatIf(region, context, name); return null; }
  root.append(region);
  if (tab === "history") return follow(context, "history", { name }, region, (now) => story(context, now), light, problem);
  return follow(context, "group", { name }, region, (now) => [
    h("div", { class: "figures" },
      figure("State", now.state, [now.type === "classic" ? "" : now.type, now.assignor || now.protocol || ""].filter(Boolean).join(", ")),
      figure("Members", count(now.members_total), `coordinator ${now.coordinator ?? "–"}`),
      figure("Lag", count(now.lag), `${count(now.partitions_total)} partitions`),
      figure("In time", now.lag ? seconds(now.seconds) : "0 s", "how long the next record waits"),
      figure("Trend", now.trend === null ? "–" : Math.abs(now.trend) < 0.5 ? "steady" : `${now.trend > 0 ? "+" : ""}${rate(now.trend)}`, now.trend > 0.5 ? "falls behind" : now.trend < -0.5 ? `caught up in ${seconds(now.lag / -now.trend)}` : "", now.trend > 0.5 ? "bad" : now.trend < -0.5 ? "good" : "")),
    h("div", { class: "panel" }, h("h2", {}, "Lag, lately"), spark(now.history.map(([at, records]) => [at, records]), `Lag over the last ${seconds(now.history.length ? now.history.at(-1)[0] - now.history[0][0] : 0)}, now ${now.lag} records`)),
    tab === "lag" ? partitions(context, now) : matrix(now),
  ], light, problem);
}

function matrix(now) {
  const topics = [...new Set(now.partitions.map((one) => one.topic))].sort();
  const colour = (topic) => `c${topics.indexOf(topic) % 8}`;
  const cells = (list) => h("div", { class: "cells" }, list.length ? list.slice(0, 400).map((one) => h("span", { class: `cell ${colour(one.topic)}`, title: `${one.topic}-${one.partition}, ${count(one.lag)} behind` }, topics.length > 1 ? `${one.topic} ` : "", String(one.partition), one.lag ? h("span", { class: "warn-text" }, ` +${count(one.lag)}`) : null)) : h("span", { class: "soft small" }, "nothing"));
  const of = new Map(now.members.map((one) => [one.member, []]));
  const without = [];
  for (const one of now.partitions) {
    if (!one.members.length) without.push(one);
    for (const member of one.members) of.get(member)?.push(one);
  }
  if (!now.members.length) return h("div", { class: "panel" }, empty("No members", "Nobody reads for this group now; what it has committed is under Lag."));
  const most = Math.max(...[...of.values()].map((one) => one.length)), least = Math.min(...[...of.values()].map((one) => one.length));
  return h("div", { class: "panel" }, h("h2", {}, "Who owns what"),
    now.members.some((one) => one.coming) ? h("div", { class: "hint" }, "Some members are still to give up or to take over partitions.") : null,
    now.type === "share" ? h("p", { class: "note" }, "Members of a share group read the same partitions: each record goes to one of them.") : null,
    h("p", { class: "note" }, `${count(now.members_total)} ${now.members_total === 1 ? "member has" : "members have"} ${least === most ? `${most}` : `${least} to ${most}`} ${least === most && most === 1 ? "partition" : "partitions"}${now.members_total === 1 ? "." : " each."}`, topics.length > 1 ? ` Topics: ${topics.join(", ")}.` : ` All of ${topics[0] ?? "–"}.`),
    h("div", { class: "matrix" }, now.members.map((one) => h("div", { class: "member" },
      h("div", { class: "who" }, h("strong", {}, one.client), h("div", { class: "note mono" }, one.host, one.instance ? ` · ${one.instance}` : ""), h("div", { class: "note mono", title: one.member }, one.member.length > 28 ? "…" + one.member.slice(-12) : one.member)),
      h("div", {}, cells(of.get(one.member)), one.tasks.length || one.standby.length ? h("div", { class: "note" }, `tasks ${one.tasks.join(", ") || "none"}${one.standby.length ? `; standing by for ${one.standby.join(", ")}` : ""}`) : null))),
      without.length ? h("div", { class: "member" }, h("div", { class: "who bad-text" }, "Nobody"), cells(without)) : null),
    now.members_total > now.members.length ? h("p", { class: "note" }, `and ${count(now.members_total - now.members.length)} more members`) : null);
}

function partitions(context, now) {
  const clients = new Map(now.members.map((one) => [one.member, one.client]));
  return h("div", { class: "panel flush" }, table([
    { title: "Partition", cell: (one) => one.gone ? [`${one.topic}-${one.partition} `, badge("topic is gone", "bad")] : [h("a", { href: context.link("topics", one.topic) }, one.topic), ` ${one.partition}`] },
    { title: "Committed", num: true, cell: (one) => count(one.offset) },
    { title: "End", num: true, cell: (one) => count(one.end) },
    { title: "Lag", num: true, cell: (one) => h("span", { class: one.lag ? "warn-text" : "" }, count(one.lag)) },
    { title: "In time", num: true, cell: (one) => seconds(one.seconds) },
    { title: now.type === "share" ? "Members" : "Member", cell: (one) => one.members.length ? one.members.map((member) => clients.get(member) || member).join(", ") : h("span", { class: "soft" }, "nobody") },
  ], [...now.partitions].sort((one, other) => (other.lag ?? -1) - (one.lag ?? -1)), { caption: "Partitions, those furthest behind first", empty: empty("Nothing committed", "This group has committed no offsets.") }),
  now.partitions_total > now.partitions.length ? h("p", { class: "note" }, `the first ${count(now.partitions.length)} of ${count(now.partitions_total)}`) : null);
}

function reset(region, context, name) {
  const to = h("select", { name: "to" }, [["earliest", "the earliest"], ["latest", "the latest"], ["timestamp", "a time"], ["offset", "an offset"], ["shift", "so many records on (or back)"], ["group", "another group"]].map(([value, title]) => h("option", { value }, title)));
  const number = h("input", { type: "number", value: "0" }), time = h("input", { type: "datetime-local", step: 1 }), other = h("input", { autocomplete: "off" }), topics = h("input", { placeholder: "all that it has, or names with commas", autocomplete: "off" });
  const fields = { number: field("Number", number), time: field("Time (yours)", time), other: field("Group", other) };
  const shown = () => { fields.number.hidden = !["offset", "shift"].includes(to.value); fields.time.hidden = to.value !== "timestamp"; fields.other.hidden = to.value !== "group"; };
  to.addEventListener("change", shown);
  shown();
  const result = h("div");
  const asked = () => ({ group: name, other: other.value, to: to.value, number: to.value === "timestamp" ? new Date(time.value).getTime() : Number(number.value), topics: topics.value.split(",").map((one) => one.trim()).filter(Boolean) });
  const preview = async () => {
    try {
      const rows = await context.post("preview-reset", asked());
      update(result, h("div", { class: "panel flush" }, h("h2", {}, "What would change"), table([
        { title: "Partition", cell: (one) => `${one.topic} ${one.partition}` },
        { title: "Now", num: true, cell: (one) => count(one.before) },
        { title: "Then", num: true, cell: (one) => count(one.after) },
        { title: "Moves by", num: true, cell: (one) => one.moves === null ? "–" : one.moves > 0 ? h("span", { class: "warn-text", title: "these records are never read by the group" }, `skips ${count(one.moves)}`) : one.moves < 0 ? `repeats ${count(-one.moves)}` : "stays" },
        { title: "Lag then", num: true, cell: (one) => one.end === null ? "–" : count(Math.max(0, one.end - one.after)) },
      ], rows, { caption: "What would change", empty: empty("Nothing would change") })),
      rows.length ? h("div", { class: "row" }, needsChanges(context, button("Reset it so", () => ask({ title: `Reset ${name}`, text: "The members have to be stopped. What is skipped is never read, what is repeated is read again.", submit: "Reset", danger: true, confirm: name, act: async (given) => { await context.post("change/reset-group", { ...asked(), confirm: given.confirm }); update(result, h("div", { class: "done", role: "status" }, "The offsets are set.")); } }), "danger"))) : null);
    } catch (error) { update(result, h("div", { class: "problem", role: "alert" }, error.message)); }
  };
  update(region, h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); preview(); } }, h("p", { class: "note" }, "Offsets can be set while the group has no members. Nothing is changed before you have seen what would."),
    h("div", { class: "row" }, field("To", to), fields.number, fields.time, fields.other, field("Topics", topics, "grow"), h("button", { class: "btn primary" }, "Preview"))), result,
    h("div", { class: "row" }, needsChanges(context, button("Delete the group", () => ask({ title: `Delete ${name}`, text: "Its offsets are gone: whoever comes back as this group begins anew.", submit: "Delete", danger: true, confirm: name, act: async (given) => { await context.post("change/delete-group", { group: name, confirm: given.confirm }); location.hash = context.link("groups"); } }), "danger"))));
}

const KINDS = { "joined": "good", "left": "", "session over": "bad", "poll too late": "bad", "left or lost": "warn", "restarted": "warn", "subscription": "accent", "partitions": "accent", "handed over": "", "rejoined": "", "first seen": "", "other": "" };

function story(context, now) {
  const list = [...now.rebalances].reverse();
  if (!list.length) return h("div", { class: "panel" }, empty("No history", "The log of offsets has no generation of this group: it never had members that a coordinator assigned partitions to."));
  const times = list.map((one) => one.took_ms).filter((one) => one !== null);
  const idle = list.flatMap((one) => Object.values(one.idle_ms));
  const hour = list.filter((one) => list[0].at_ms - one.at_ms < 3600000);
  return [
    now.flapping.map((one) => h("div", { class: "problem" }, h("strong", {}, `${one.client} flaps: ${one.times} times in ${seconds(one.within_ms / 1000)}, ${one.cause}. `), one.advice[0].toUpperCase() + one.advice.slice(1) + ".")),
    h("div", { class: "figures" },
      figure("Generation", count(list[0].generation), `${count(list.length)} rebalances in the log`),
      figure("Within an hour", count(hour.length), "of the last one", hour.length > 10 ? "bad" : hour.length > 4 ? "warn" : ""),
      figure("Took at most", times.length ? seconds(Math.max(...times) / 1000) : "–", times.length ? "from begin to assignment" : "this coordinator does not say"),
      figure("Without an owner", idle.length ? seconds(Math.max(...idle) / 1000) : "–", "a partition, at most")),
    h("div", { class: "panel" }, h("h2", {}, "Rebalances"), h("p", { class: "note" }, now.causes_are_exact ? "The causes are the coordinator's own words." : "The causes are inferred from generations and commits: this coordinator does not write them down.", now.older_left_out ? " Older records were left out." : ""),
      h("ol", { class: "events" }, list.map(rebalance))),
  ];
}

function rebalance(one) {
  const worst = one.causes.map((cause) => KINDS[cause.kind]).sort((a, b) => ["bad", "warn", "accent", "good", ""].indexOf(a) - ["bad", "warn", "accent", "good", ""].indexOf(b))[0] || "";
  const idle = Object.values(one.idle_ms);
  return h("li", {}, h("div", { class: "when" }, h("span", { class: "day" }, moment(one.at_ms).slice(0, 10), " "), moment(one.at_ms, false)), h("div", { class: `dot ${worst}`, "aria-hidden": "true" }),
    h("div", {}, h("div", { class: "title" }, `Generation ${count(one.generation)} `, one.causes.map((cause) => [badge(cause.kind, KINDS[cause.kind]), " "])),
      one.causes.map((cause) => h("div", { class: "small" }, cause.text)),
      h("div", { class: "note" }, one.members_before && one.members_before !== one.members ? `${one.members_before} → ${one.members} members` : `${one.members} member${one.members === 1 ? "" : "s"}`,
        one.took_ms === null ? "" : ` · took ${seconds(one.took_ms / 1000)}`,
        idle.length ? ` · ${idle.length} partition${idle.length === 1 ? "" : "s"} without an owner for at most ${seconds(Math.max(...idle) / 1000)}` : "",
        one.generations_not_seen ? ` · ${count(one.generations_not_seen)} generation${one.generations_not_seen === 1 ? "" : "s"} before it not in the log` : ""),
      one.moves.length ? h("details", {}, h("summary", {}, `${count(one.moves.length)} partitions moved`), h("ul", { class: "small" }, one.moves.slice(0, 200).map((move) => h("li", {}, `${move.topic}-${move.partition}: ${move.from || "nobody"} → ${move.to || "nobody"}`)))) : null));
}

function whatIf(region, context, name) {
  const strategy = h("select", {}, [["", "as it is"], "range", "roundrobin", "sticky", "cooperative-sticky", "lag", "weighted", "uniform"].map((one) => Array.isArray(one) ? h("option", { value: one[0] }, one[1]) : h("option", { value: one }, one)));
  const members = h("input", { type: "number", min: 1, max: 10000, placeholder: "as now" });
  const partitions = h("input", { placeholder: "orders=12, clicks=24", autocomplete: "off" });
  const weights = h("input", { placeholder: "billing-1=3", autocomplete: "off" }), racks = h("input", { placeholder: "billing-1=east", autocomplete: "off" });
  const result = h("div");
  let clients = {};
  const pairs = (text) => Object.fromEntries(text.split(",").map((one) => one.trim()).filter((one) => one.includes("=")).map((one) => [one.slice(0, one.lastIndexOf("=")).trim(), one.slice(one.lastIndexOf("=") + 1).trim()]));
  const byMember = (found) => Object.fromEntries(Object.entries(found).map(([who, value]) => [Object.keys(clients).find((id) => id === who || clients[id] === who) || who, value]));
  const numbers = (found) => Object.fromEntries(Object.entries(found).map(([key, value]) => [key, Number(value)]));
  const work = async () => {
    try {
      const plan = await context.post("what-if", { group: name, strategy: strategy.value, members: members.value ? Number(members.value) : null, partitions: numbers(pairs(partitions.value)), weights: numbers(byMember(pairs(weights.value))), racks: byMember(pairs(racks.value)) });
      if (plan.nobody) { update(result, h("div", { class: "panel" }, empty("No members", plan.nobody))); return; }
      clients = plan.clients;
      const moved = new Set(plan.moves.map((one) => one.partition));
      const who = (id) => clients[id] || id || "nobody";
      update(result,
        h("div", { class: "figures" }, figure("Strategy", plan.strategy, plan.strategy === plan.now ? "as it is" : `now ${plan.now}`), figure("Members", count(plan.members.length)), figure("Each would have", plan.balance.fewest === plan.balance.most ? count(plan.balance.most) : `${plan.balance.fewest} to ${plan.balance.most}`, "partitions"), figure("Would move", count(plan.moves.length), "partitions", plan.moves.length ? "warn" : "good"), plan.unassigned.length ? figure("Without an owner", count(plan.unassigned.length), "", "bad") : null),
        h("div", { class: "panel" }, h("h2", {}, "Who would own what"), h("p", { class: "note" }, "What would move is marked. Nothing was changed."), h("div", { class: "matrix" }, plan.members.map((one) => h("div", { class: "member" },
          h("div", { class: "who" }, h("strong", {}, one.client), one.new ? [" ", badge("new", "accent")] : null, h("div", { class: "note" }, `${one.before} → ${one.partitions.length} partitions, ${count(one.lag)} behind`)),
          h("div", { class: "cells" }, one.partitions.length ? one.partitions.slice(0, 400).map((p) => h("span", { class: `cell ${moved.has(p) ? "moved" : "c0"}` }, p)) : h("span", { class: "soft small" }, "nothing")))))),
        plan.moves.length ? h("div", { class: "panel flush" }, h("h2", {}, "Moves"), table([{ title: "Partition", cell: (one) => one.partition }, { title: "Now", cell: (one) => who(one.from) }, { title: "Then", cell: (one) => who(one.to) }], plan.moves.slice(0, 500), { caption: "Partitions that would move" })) : null);
    } catch (error) { update(result, h("div", { class: "problem", role: "alert" }, error.message)); }
  };
  update(region, h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); work(); } }, h("p", { class: "note" }, "Take the group as it is, and see what another strategy, more or fewer members, more partitions, weights or racks would come to, before anything is deployed."),
    h("div", { class: "row" }, field("Strategy", strategy), field("Members", members), field("Partitions", partitions, "grow"), field("Weights", weights, "grow"), field("Racks", racks, "grow"), h("button", { class: "btn primary" }, "Work it out"))), result);
  work();
}
