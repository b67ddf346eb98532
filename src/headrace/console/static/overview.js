import { badge, bytes, count, empty, figure, h, meter, rate, seconds, table, trend, update } from "./dom.js";
import { follow, heading, mark } from "./page.js";

function problemList(title, found, text) {
  if (!found.count) return null;
  return h("div", { class: found.count ? "problem" : "" }, h("strong", {}, `${count(found.count)} ${title}. `), text, " ",
    h("span", { class: "mono" }, found.first.join(", ") + (found.count > found.first.length ? " …" : "")));
}

export function overviewPage(root, context) {
  const light = mark(), problem = h("div"), region = h("div"), disks = h("div");
  root.append(heading("Overview", { liveMark: light.node }), problem, region, disks);
  const stop = follow(context, "overview", {}, region, (now) => {
    const broken = now.problems.offline.count, under = now.problems.under_replicated.count;
    const away = now.brokers.filter((one) => one.fenced).length;
    const few = now.problems.under_min_isr.count;
    const health = broken || few ? ["bad", "broken"] : under || away ? ["warn", "at risk"] : ["good", "healthy"];
    return [
      now.error ? h("div", { class: "hint" }, `The last look at offsets failed: ${now.error}`) : null,
      problemList("partitions without a leader", now.problems.offline, "Nobody can read or write them until a broker with a replica comes back:"),
      problemList("partitions are under min.insync.replicas", now.problems.under_min_isr, "Producers with acks=all are refused there until more replicas are in sync:"),
      under ? h("div", { class: "hint" }, h("strong", {}, `${count(under)} partitions are under-replicated. `), "One more failure costs records or service: ", h("span", { class: "mono" }, now.problems.under_replicated.first.join(", ") + (under > 20 ? " …" : ""))) : null,
      h("div", { class: "figures" },
        figure("Cluster", health[1], `${now.brokers.length - away} of ${now.brokers.length} brokers`, health[0]),
        figure("Records in", rate(now.records_per_second), now.is_sampled ? "all topics" : "topics that are looked at"),
        figure("Topics", count(now.topics), `${count(now.partitions)} partitions`),
        figure("Groups", count(now.groups), now.most_behind[0]?.records ? `${count(now.most_behind[0].records)} behind at most` : "none behind"),
        figure("Under-replicated", count(under), broken || few ? [broken ? `${count(broken)} offline` : "", few ? `${count(few)} under min ISR` : ""].filter(Boolean).join(", ") : "none offline or under min ISR", broken || few ? "bad" : under ? "warn" : "")),
      h("div", { class: "panel flush" }, h("h2", {}, "Brokers"), table([
        { title: "Broker", cell: (one) => h("a", { href: context.link("brokers", String(one.id)) }, `${one.id}`) },
        { title: "Address", cell: (one) => h("span", { class: "mono" }, `${one.host}:${one.port}`) },
        { title: "State", cell: (one) => one.fenced ? badge("away", "bad") : one.is_controller ? [badge("up", "good"), " ", badge("controller", "accent")] : badge("up", "good") },
        ...(now.brokers.some((one) => one.rack) ? [{ title: "Rack", cell: (one) => one.rack || h("span", { class: "soft" }, "none") }] : []),
        { title: "Leads", num: true, cell: (one) => count(one.leads) },
        { title: "Replicas", num: true, cell: (one) => count(one.replicas) },
      ], now.brokers, { caption: "Brokers" })),
      h("div", { class: "cols" },
        h("div", { class: "panel flush" }, h("h2", {}, "Furthest behind"), table([
          { title: "Group", cell: (one) => h("a", { href: context.link("groups", one.group) }, one.group) },
          { title: "Lag", num: true, cell: (one) => count(one.records) },
          { title: "In time", num: true, cell: (one) => one.seconds === null ? "…" : seconds(one.seconds) },
          { title: "Trend", cell: (one) => trend(one.trend) },
        ], now.most_behind, { caption: "Groups that are furthest behind", empty: empty("No groups", "Nobody has committed an offset yet.") })),
        h("div", { class: "panel flush" }, h("h2", {}, "Busiest topics"), table([
          { title: "Topic", cell: (one) => h("a", { href: context.link("topics", one.topic) }, one.topic) },
          { title: "Records", num: true, cell: (one) => rate(one.records_per_second) },
        ], now.busiest, { caption: "Topics that most is written to", empty: empty("Nothing is written", "No records came since the console looks.") }))),
    ];
  }, light, problem);
  context.get("disks").then((found) => {
    if (found.error) { update(disks, h("p", { class: "note" }, `Disks cannot be seen: ${found.error}`)); return; }
    update(disks, h("div", { class: "cols" }, h("div", { class: "panel flush" }, h("h2", {}, "Disks"), table([
      { title: "Broker", cell: (one) => String(one.broker) },
      { title: "Logs", num: true, cell: (one) => bytes(one.logs) },
      { title: "Free", num: true, cell: (one) => one.error ? badge("failed", "bad") : bytes(one.free) },
      { title: "Disk used", cell: (one) => one.total > 0 ? meter(1 - one.free / one.total, `${Math.round((1 - one.free / one.total) * 100)} % of the disk is used`, one.free / one.total < 0.1 ? "bad" : "") : "–" },
    ], found.brokers, { caption: "Disks of the brokers" })), h("div", { class: "panel flush" }, h("h2", {}, "Largest topics"), table([
      { title: "Topic", cell: (one) => h("a", { href: context.link("topics", one.topic) }, one.topic) },
      { title: "On all disks", num: true, cell: (one) => bytes(one.bytes) },
    ], found.largest, { caption: "Largest topics", empty: empty("Nothing on the disks", "There are no topics, or brokers do not say.") }))));
  }).catch((error) => update(disks, h("p", { class: "note" }, `Disks cannot be seen: ${error.message}`)));
  return stop;
}
