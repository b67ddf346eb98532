// What pages have in common: a heading, what is live, dialogs for changes.

import { live } from "./api.js";
import { h, update } from "./dom.js";

export function heading(title, { crumb, actions = [], liveMark } = {}) {
  return h("div", { class: "head" }, crumb ? h("div", { class: "crumb" }, crumb) : null, h("h1", {}, title), liveMark, h("span", { class: "grow" }), actions);
}

export function mark() {
  const node = h("span", { class: "live off", role: "status" }, "loading");
  return {
    node,
    ok() { node.className = "live"; node.textContent = "live"; },
    bad() { node.className = "live broken"; node.textContent = "no answer"; },
  };
}

export function follow(context, path, parameters, region, shown, light, problem) {
  // Shows `shown(state)` in the region, now and whenever it changes.
  if (!region.hasChildNodes()) update(region, h("p", { class: "note" }, "Asking the cluster…"));
  return live(`${context.api}/live/${path}`, parameters, {
    state(state) { light?.ok(); problem?.replaceChildren(); update(region, shown(state)); },
    problem(text) {
      light?.bad();
      const said = h("div", { class: "problem", role: "alert" }, text);
      if (problem) problem.replaceChildren(said); else update(region, said);
    },
  });
}

export function needsChanges(context, button) {
  if (!context.changes) { button.disabled = true; button.title = "The console is read-only: start it with --allow-changes"; }
  return button;
}

export function button(text, onclick, kind = "") {
  return h("button", { class: `btn ${kind}`, type: "button", onclick }, text);
}

export function field(name, control, kind = "") {
  return h("label", { class: kind }, name, control);
}

export function ask({ title, text, fields = [], confirm, submit, act, danger = false, wide }) {
  // A dialog; `act(values)` does it. With `confirm`, that text has to be typed.
  const said = h("div", { role: "alert" });
  const typed = confirm ? h("input", { name: "confirm", required: true, autocomplete: "off", spellcheck: "false" }) : null;
  const go = h("button", { class: `btn ${danger ? "danger" : "primary"}` }, submit);
  const form = h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    if (typed && typed.value !== confirm) { update(said, h("div", { class: "problem" }, `Type ${confirm} to confirm.`)); typed.focus(); return; }
    go.disabled = true;
    try {
      const values = Object.fromEntries(new FormData(form).entries());
      const done = await act(values);
      if (done !== false) dialog.close();
    } catch (error) { update(said, h("div", { class: "problem" }, error.message)); }
    go.disabled = false;
  } }, h("h2", { id: "dialog-title" }, title), text ? h("p", { class: "soft small" }, text) : null, fields,
    typed ? h("label", {}, h("span", {}, "Type ", h("strong", { class: "mono" }, confirm), " to confirm"), typed) : null, said,
    h("div", { class: "end" }, button("Cancel", () => dialog.close()), go));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: wide ? "wide" : "" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function later(run, ms = 250) {
  let timer = null;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => run(...given), ms); };
}
