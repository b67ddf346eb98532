import { badge, bytes, count, empty, figure, h, meter, moment, rate, seconds, stateBadge, table, update } from "./dom.js";
import { ask, button, follow, heading, mark, needsChanges } from "./page.js";

export function transactionsPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div"), found = h("div");
  const look = button("Look for hanging ones", async () => {
    update(found, h("p", { class: "note", role: "status" }, "Looking at every partition…"));
    try {
      const { rows } = await context.get("hanging");
      update(found, h("div", { class: "panel flush" }, h("h2", {}, "Hanging transactions"), table([
        { title: "Partition", cell: (one) => [h("a", { href: context.link("topics", one.topic) }, one.topic), ` ${one.partition}`] },
        { title: "Producer", cell: (one) => `${one.producer}, epoch ${one.epoch}` },
        { title: "Began at", num: true, cell: (one) => count(one.start_offset) },
        { title: "Holds up", num: true, cell: (one) => `${count(one.holds_up)} records` },
        { title: "Last record", num: true, cell: (one) => `${seconds(one.age_s)} ago` },
        { title: "Action", cell: (one) => needsChanges(context, button("Abort", () => ask({ title: "Abort the transaction here", text: "Its records in this partition are never read as committed; readers go on behind them.", submit: "Abort", danger: true, confirm: `${one.topic}-${one.partition}`, act: async (given) => { await context.post("change/abort-transaction", { topic: one.topic, partition: one.partition, producer: one.producer, epoch: one.epoch, coordinator_epoch: one.coordinator_epoch, confirm: given.confirm }); look.click(); } }), "danger")) },
      ], rows, { caption: "Hanging transactions", empty: empty("None hangs", "Every open transaction has a coordinator that will end it.") })));
    } catch (error) { update(found, h("div", { class: "problem", role: "alert" }, error.message)); }
  });
  root.append(heading("Transactions", { liveMark: light.node, actions: [look] }), problem, found, region);
  return follow(context, "transactions", {}, region, (now) => {
    const open = now.rows.filter((one) => one.age_s !== null);
    return [h("div", { class: "figures" }, figure("Transactional ids", count(now.total)), figure("Open now", count(open.length)), figure("Oldest", open.length ? seconds(Math.max(...open.map((one) => one.age_s))) : "–", "", open.some((one) => one.late) ? "bad" : ""), figure("Over their time-out", count(open.filter((one) => one.late).length), "", open.some((one) => one.late) ? "bad" : "")),
      h("div", { class: "panel flush" }, table([
        { title: "Transactional id", cell: (one) => one.id },
        { title: "State", cell: (one) => stateBadge(one.state) },
        { title: "Age", num: true, cell: (one) => one.age_s === null ? "–" : h("span", { class: one.late ? "bad-text" : "" }, seconds(one.age_s)) },
        { title: "Time-out", num: true, cell: (one) => seconds(one.timeout_s) },
        { title: "Producer", cell: (one) => `${one.producer}, epoch ${one.epoch}` },
        { title: "Holds up", num: true, cell: (one) => one.held_up === null ? "–" : h("span", { class: one.late ? "bad-text" : "", title: Object.entries(one.stable).map(([name, offset]) => `${name}: readers of committed records stop at ${offset}`).join("\n") }, one.held_up === 1 ? "1 record" : `${count(one.held_up)} records`) },
        { title: "Partitions", cell: (one) => one.partitions_total ? h("span", { class: "mono" }, one.partitions.join(", ") + (one.partitions_total > one.partitions.length ? " …" : "")) : h("span", { class: "soft" }, "none") },
      ], now.rows, { caption: "Transactions", empty: empty("No transactions", "No producer with a transactional.id has begun.") }))];
  }, light, problem);
}

export function movesPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div");
  const elect = needsChanges(context, button("Let the first replicas lead", () => ask({ title: "Elect the preferred leaders", text: "Partitions whose first replica is in sync are led by it again. Clients notice within a second.", submit: "Elect", act: async () => { await context.post("change/elect-preferred", {}); } })));
  root.append(heading("Moves and leaders", { liveMark: light.node, actions: [elect] }), problem, region);
  return follow(context, "moves", {}, region, (now) => [
    h("div", { class: "panel flush" }, h("h2", {}, "Replicas on the move"), table([
      { title: "Partition", cell: (one) => `${one.topic} ${one.partition}` },
      { title: "Replicas", cell: (one) => one.replicas.join(", ") },
      { title: "Comes", cell: (one) => one.adding.join(", ") || "–" },
      { title: "Goes", cell: (one) => one.removing.join(", ") || "–" },
      { title: "Copied", cell: (one) => one.progress === null ? "–" : [meter(one.progress, `${Math.round(one.progress * 100)} % copied`), h("span", { class: "note" }, `${Math.round(one.progress * 100)} %`)] },
      { title: "Action", cell: (one) => needsChanges(context, button("Cancel", () => ask({ title: "Cancel the move", submit: "Cancel it", act: () => context.post("change/cancel-move", { topic: one.topic, partition: one.partition }) }))) },
    ], now.rows, { caption: "Reassignments", empty: empty("Nothing moves", "Moves are planned and begun with: headrace reassign") })),
    h("div", { class: "panel flush" }, h("h2", {}, "Not led by their first replica"), table([
      { title: "Partition", cell: (one) => `${one.topic} ${one.partition}` },
      { title: "Leader", cell: (one) => String(one.leader) },
      { title: "First replica", cell: (one) => String(one.preferred) },
    ], now.elsewhere, { caption: "Partitions that another replica leads", empty: empty("All are", "Every partition is led by its first replica.") }),
    now.elsewhere_total > now.elsewhere.length ? h("p", { class: "note" }, `and ${count(now.elsewhere_total - now.elsewhere.length)} more`) : null),
  ], light, problem);
}

export function rightsPage(root, context) {
  const region = h("div");
  root.append(heading("Rights, users and quotas"), region);
  const part = (title, found, columns, nothing) => h("div", { class: "panel flush" }, h("h2", {}, title), found.error ? h("p", { class: "note" }, found.error) : null, found.error ? h("p") : table(columns, found.rows, { caption: title, empty: nothing, stack: true }));
  context.get("rights").then((now) => update(region,
    part("ACLs", now.acls, [
      { title: "Principal", cell: (one) => one.principal },
      { title: "May", cell: (one) => badge(one.permission, one.permission === "deny" ? "bad" : "good") },
      { title: "Operation", cell: (one) => one.operation },
      { title: "On", cell: (one) => `${one.resource} ${one.name}${one.pattern === "prefixed" ? "*" : ""}` },
      { title: "From", cell: (one) => one.host },
    ], empty("No ACLs", "Without ACLs, super users may do everything, and others what allow.everyone.if.no.acl.found says.")),
    h("div", { class: "cols" }, part("Users (SCRAM)", now.users, [
      { title: "User", cell: (one) => one.user }, { title: "Mechanisms", cell: (one) => one.mechanisms.join("; ") },
    ], empty("No users", "Nobody logs in with SCRAM.")),
    part("Quotas", now.quotas, [
      { title: "For", cell: (one) => one.entity }, { title: "Limits", cell: (one) => h("span", { class: "mono" }, Object.entries(one.values).map(([name, value]) => `${name}=${value}`).join(", ")) },
    ], empty("No quotas", "Nobody is slowed down."))))).catch((error) => update(region, h("div", { class: "problem", role: "alert" }, error.message)));
}

export function auditPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div");
  root.append(heading("Refused and changed", { liveMark: light.node }), problem, region);
  return follow(context, "refused", {}, region, (now) => {
    if (!now.files.length) return h("div", { class: "panel" }, empty("No audit log was named", "Brokers write down what they refuse and what is changed, each in a file of its own. Start the console with --broker-audit FILE to see it here: audit.jsonl of a Headrace broker, kafka-authorizer.log of Apache Kafka."));
    const times = (one) => one.times > 1 ? count(one.times) : "once";
    return [
      now.errors.map((one) => h("div", { class: "hint" }, `${one.file} cannot be read: ${one.error}`)),
      h("div", { class: "panel flush" }, h("h2", {}, "Refused"), h("p", { class: "note" }, "The fewest rules that would allow it: ", h("code", {}, `headrace acl suggest ${now.files.join(" ")}`)), table([
        { title: "Who", cell: (one) => [one.principal, h("div", { class: "note mono" }, one.host, one.client_id ? ` · ${one.client_id}` : "")] },
        { title: "Wanted", cell: (one) => [badge(one.operation, "bad"), ` on ${one.resource} `, h("strong", { class: "mono" }, one.name), h("div", { class: "note" }, `by ${one.request}`)] },
        { title: "Why not", cell: (one) => one.why },
        { title: "How often", num: true, cell: times },
        { title: "Last", cell: (one) => h("span", { class: "at" }, moment(one.at_ms)) },
      ], now.refused, { stack: true, caption: "What was refused", empty: empty("Nothing was refused", "Whoever asked for something was allowed to have it.") }),
      now.refused_total > now.refused.length ? h("p", { class: "note" }, `and ${count(now.refused_total - now.refused.length)} more`) : null),
      now.logins.length ? h("div", { class: "panel flush" }, h("h2", {}, "Logins that failed"), table([
        { title: "From", cell: (one) => h("span", { class: "mono" }, one.host) },
        { title: "Listener", cell: (one) => one.listener },
        { title: "Why", cell: (one) => one.why },
        { title: "How often", num: true, cell: times },
        { title: "Last", cell: (one) => h("span", { class: "at" }, moment(one.at_ms)) },
      ], now.logins, { stack: true, caption: "Logins that failed" })) : null,
      h("div", { class: "panel flush" }, h("h2", {}, "Changed"), table([
        { title: "When", cell: (one) => h("span", { class: "at" }, moment(one.at_ms)) },
        { title: "Who", cell: (one) => [one.principal, h("div", { class: "note mono" }, one.host, one.client_id ? ` · ${one.client_id}` : "")] },
        { title: "What", cell: (one) => [one.request, " ", one.done ? null : badge("not done", "warn"), h("div", { class: "note mono" }, (one.what || []).join(", "), one.more ? ` and ${count(one.more)} more` : "")] },
      ], now.changed, { stack: true, caption: "What was changed", empty: empty("Nothing was changed") }),
      now.changed_total > now.changed.length ? h("p", { class: "note" }, `and ${count(now.changed_total - now.changed.length)} more`) : null),
    ];
  }, light, problem);
}

export function brokerPage(root, context, id) {
  const region = h("div");
  root.append(heading(`Broker ${id}`, { crumb: h("a", { href: context.link("overview") }, "Overview") }), region);
  context.get("broker-configs", { id }).then((rows) => update(region, h("div", { class: "panel flush" }, h("h2", {}, "Settings"), table([
    { title: "Key", cell: (one) => one.name },
    { title: "Value", cell: (one) => h("span", { class: `mono ${one.is_default ? "soft" : ""}` }, one.value ?? "(secret or empty)") },
    { title: "From", cell: (one) => one.is_default ? h("span", { class: "soft" }, "default") : badge(one.source, "accent") },
  ], rows, { caption: "Settings of the broker", stack: true })))).catch((error) => update(region, h("div", { class: "problem", role: "alert" }, error.message)));
}

export function workersPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div");
  root.append(heading("Workers", { liveMark: light.node }), problem, region);
  return follow(context, "workers", {}, region, (now) => [
    now.errors.map((one) => h("div", { class: "hint" }, `${one.page} does not answer: ${one.error}`)),
    !now.pages.length ? h("div", { class: "panel" }, empty("No pages of metrics were named", "Parallel consumers and Spark queries say how they are on a page of their own: headrace parallel … --metrics-port 9405, or headrace.metrics.serve(…). Start the console with --metrics http://HOST:9405/metrics to see them here.")) : null,
    now.parallel.map((one) => h("div", { class: "panel flush" }, h("h2", {}, "Parallel consumer ", h("a", { href: context.link("groups", one.group) }, one.group)),
      h("div", { class: "note" }, `${count(one.workers_busy)} of ${count(one.workers)} workers busy · handled ${count(one.handled)} · failures ${count(one.failures)} · retried ${count(one.local_retries)} · to the retry topic ${count(one.retry_topic)} · dead letters ${count(one.dead_letters)} · stalls ${count(one.stalls)} · ${bytes(one.buffered_bytes)} held`),
      table([
        { title: "Partition", cell: ([name]) => name },
        { title: "Window", cell: ([, p]) => `${count(p.window_start)} – ${count(p.window_end)}` },
        { title: "Unfinished", num: true, cell: ([, p]) => count(p.incomplete) },
        { title: "In flight", num: true, cell: ([, p]) => count(p.in_flight) },
        { title: "Held", num: true, cell: ([, p]) => count(p.held) },
        { title: "Oldest", num: true, cell: ([, p]) => seconds(p.oldest_age_seconds) },
      ], Object.entries(one.partitions), { caption: `Partitions of ${one.group}`, empty: empty("No partitions") }))),
    now.queries.length ? h("div", { class: "panel flush" }, h("h2", {}, "Spark queries"), table([
      { title: "Query", cell: (one) => one.query },
      { title: "Batch", num: true, cell: (one) => count(one.batch) },
      { title: "Rows in", num: true, cell: (one) => rate(one.input_rows_per_second) },
      { title: "Handled", num: true, cell: (one) => rate(one.processed_rows_per_second) },
      { title: "Last batch took", num: true, cell: (one) => seconds(one.phases.triggerExecution) },
      { title: "Lag", num: true, cell: (one) => count(one.lag_records) },
    ], now.queries, { caption: "Spark queries" })) : null,
  ], light, problem);
}
