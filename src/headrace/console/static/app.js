// The frame: which cluster, which page, light or dark; and pages that come and go by what stands behind the #.

import { get, post, Refused } from "./api.js";
import { h, update } from "./dom.js";
import { groupPage, groupsPage } from "./groups.js";
import { messagesPage } from "./messages.js";
import { auditPage, movesPage, rightsPage, transactionsPage, workersPage, brokerPage } from "./others.js";
import { overviewPage } from "./overview.js";
import { topicPage, topicsPage } from "./topics.js";

const PAGES = [
  ["overview", "Overview", overviewPage],
  ["topics", "Topics", topicsPage],
  ["groups", "Groups", groupsPage],
  ["transactions", "Transactions", transactionsPage],
  ["workers", "Workers", workersPage],
  ["moves", "Moves", movesPage],
  ["rights", "Rights", rightsPage],
  ["audit", "Audit", auditPage],
];

let session = null;
let leave = null;

export function link(cluster, ...parts) {
  return "#/" + [cluster, ...parts].map(encodeURIComponent).join("/");
}

function place() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, search: new URLSearchParams(search) };
}

function theme(next) {
  const chosen = next ?? localStorage.getItem("headrace-theme");
  if (chosen) document.documentElement.dataset.theme = chosen; else delete document.documentElement.dataset.theme;
}

function isDark() {
  return document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeButton() {
  const name = () => (isDark() ? "Light" : "Dark");
  const button = h("button", { class: "btn", type: "button", "aria-label": "Switch between light and dark", onclick: () => {
    const next = isDark() ? "light" : "dark";
    localStorage.setItem("headrace-theme", next);
    theme(next);
    button.textContent = name();
  } }, name());
  return button;
}

function frame(cluster, active, content) {
  const chooser = session.clusters.length > 1
    ? h("label", {}, "Cluster", h("select", { onchange: (one) => { location.hash = link(one.target.value, "overview"); } },
        session.clusters.map((one) => h("option", { value: one.name, selected: one.name === cluster }, one.name))))
    : null;
  const servers = session.clusters.find((one) => one.name === cluster)?.servers || "";
  return h("div", { class: "frame" },
    h("header", { class: "side" },
      h("div", { class: "top" }, h("a", { class: "brand", href: link(cluster, "overview") }, h("img", { src: "/static/icon.svg", alt: "" }), "Headrace"), chooser),
      h("nav", { "aria-label": "Pages" }, h("ul", {}, PAGES.map(([name, title]) =>
        h("li", {}, h("a", { href: link(cluster, name), "aria-current": name === active ? "page" : null }, title))))),
      h("div", { class: "foot" },
        h("span", { class: "wide-only mono", title: servers }, servers.length > 40 ? servers.slice(0, 38) + "…" : servers),
        h("span", {}, session.changes ? "changes are allowed" : "read-only"), themeButton())),
    content);
}

async function show() {
  leave?.();
  leave = null;
  const root = document.getElementById("app");
  const { parts, search } = place();
  const known = session.clusters.map((one) => one.name);
  if (!known.includes(parts[0])) { location.replace(link(known[0], "overview")); return; }
  const [cluster, name = "overview", item, tab] = parts;
  const page = PAGES.find((one) => one[0] === name) || PAGES[0];
  const content = h("main", { id: "content", tabindex: "-1", class: "fade" });
  const context = {
    cluster, search, changes: session.changes, api: `/api/c/${encodeURIComponent(cluster)}`,
    link: (...more) => link(cluster, ...more),
    get: (path, parameters, signal) => get(`/api/c/${encodeURIComponent(cluster)}/${path}`, parameters, signal),
    post: (path, body) => post(`/api/c/${encodeURIComponent(cluster)}/${path}`, body),
  };
  update(root, frame(cluster, page[0], content));
  root.querySelector(".side nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  document.title = `${item || page[1]} · ${cluster} · Headrace`;
  window.scrollTo(0, 0);
  let make = page[2];
  if (name === "topics" && item !== undefined) make = tab === "messages" ? messagesPage : topicPage;
  if (name === "groups" && item !== undefined) make = groupPage;
  if (name === "brokers" && item !== undefined) make = brokerPage;
  try {
    leave = make(content, context, item, tab) || null;
  } catch (error) {
    content.append(h("div", { class: "problem", role: "alert" }, String(error.message || error)));
    throw error;
  }
}

function askForToken() {
  const said = h("div", { role: "alert" });
  const input = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true });
  update(document.getElementById("app"), h("main", { id: "content" }, h("div", { class: "panel" }, h("h1", {}, "Headrace console"),
    h("p", { class: "soft" }, "Show the token that the console was started with."), said,
    h("form", { onsubmit: async (event) => {
      event.preventDefault();
      try { await post("/api/login", { token: input.value }); await begin(); } catch (error) { update(said, h("div", { class: "problem" }, error.message)); }
    } }, h("div", { class: "row" }, h("label", { class: "grow" }, "Token", input), h("button", { class: "btn primary" }, "Come in"))))));
  input.focus();
}

async function begin() {
  session = await get("/api/session");
  if (session.needs_token) { askForToken(); return; }
  await show();
}

theme();
window.addEventListener("hashchange", () => { if (session && !session.needs_token) show(); });
begin().catch((error) => {
  const text = error instanceof Refused ? error.message : "The console does not answer. Is it running?";
  document.getElementById("app").replaceChildren(h("main", { id: "content" }, h("div", { class: "problem", role: "alert" }, text)));
});
