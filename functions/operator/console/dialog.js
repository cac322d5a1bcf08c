// Dialogs: a question with its fields, and what became of the answer.

import { h, show } from "./dom.js";
import { Refused, Written } from "./api.js";
import { prose } from "./words.js";

const BY = "stepwarden.by";
const MOST_REASON = 180;
const MOST_BY = 100;

const place = () => document.getElementById("dialogs");

/** Says `text` for a while, on the screen and to screen readers. */
export function say(text, looks = "good") {
  const line = h("p", { class: `toast ${looks}` }, text);
  document.getElementById("said").replaceChildren(line);
  setTimeout(() => line.remove(), 8000);
}

/** A dialog with `kids`; it is gone once closed. */
export function open(title, kids, props = {}) {
  const heading = `d-${Math.random().toString(36).slice(2)}`;
  const dialog = h("dialog", { "aria-labelledby": heading, ...props }, h("h2", { id: heading }, title), kids);
  dialog.addEventListener("close", () => dialog.remove());
  // A click on what is behind it, which counts as one on the dialog itself.
  dialog.addEventListener("mousedown", (event) => {
    const box = dialog.getBoundingClientRect();
    const inside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (event.target === dialog && !inside) dialog.close();
  });
  place().append(dialog);
  dialog.showModal();
  return dialog;
}

function control(field) {
  const id = `f-${field.name}`;
  const props = { id, name: field.name, required: field.required, maxlength: field.most, "aria-describedby": field.help ? `${id}-help` : null };
  const pick = (option) => h("option", { value: option, selected: option === field.value }, field.names?.[option] ?? option);
  let input;
  if (field.kind === "select") input = h("select", props, field.options.map(pick));
  else if (field.kind === "json") input = h("textarea", { ...props, rows: field.rows ?? 8, spellcheck: "false", class: "mono" });
  else input = h("input", { ...props, type: "text", autocomplete: "off" });
  if (field.kind !== "select") input.value = field.value ?? "";
  const help = field.help && h("small", { id: `${id}-help` }, field.help);
  const whole = [h("label", { for: id }, field.label), input, help];
  return h("div", { class: "field" }, field.folded ? h("details", {}, h("summary", {}, field.folded), whole) : whole);
}

function values(form, fields) {
  const all = {};
  for (const field of fields) {
    const text = form.elements[field.name].value.trim();
    if (field.kind !== "json") {
      all[field.name] = text;
      continue;
    }
    // Left as it was: not part of the action.
    if (text === (field.value ?? "").trim() && !field.always) continue;
    if (text === "") continue;
    try {
      JSON.parse(text);
      all[field.name] = new Written(text);
    } catch (error) {
      throw new Error(`${field.label} is not JSON: ${error.message}`);
    }
  }
  return all;
}

/**
 * Asks for a reason and a name beside `fields`, and does `send(values, { tell, signal })` once confirmed. `send` answers what to
 * say, or `{ stay }`, what to show in the dialog. `tell` shows how far it is; `signal` is aborted when the dialog is closed. With
 * `look(values, { tell, signal })`, which answers `{ told, verb }`, the first confirmation only shows what would be done; `verb`
 * null: nothing. A change in the form aborts `signal`, and only what it showed is sent.
 * Fields: `{ name, label, kind: "text" | "select" | "json", value, options, names, required, help, folded }`.
 */
export function ask({ title, lead, fields = [], verb, danger, look, send, done }) {
  const all = [
    { name: "reason", label: "Reason", required: true, most: MOST_REASON, help: "Kept in the record." },
    ...fields,
    { name: "by", label: "Your name", required: true, most: MOST_BY, value: localStorage.getItem(BY) ?? "", help: "Ignored if your token names you." },
  ];
  const wrong = h("p", { class: "wrong", role: "alert" });
  const confirm = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const told = h("div", { class: "told", role: "status" });
  const closed = new AbortController();
  // The values that were looked at, and the look in progress.
  let looked = null;
  let looking = null;
  const tell = (...kids) => show(told, kids);
  const form = h(
    "form",
    {
      async onsubmit(event) {
        event.preventDefault();
        // Keys submit a form whose button cannot be pressed.
        if (confirm.disabled || !confirm.isConnected) return;
        show(wrong);
        let given;
        try {
          given = values(form, all);
        } catch (error) {
          show(wrong, error.message);
          return;
        }
        localStorage.setItem(BY, given.by);
        const asked = JSON.stringify(given);
        const mine = look && looked !== asked ? new AbortController() : null;
        const isDropped = () => closed.signal.aborted || Boolean(mine?.signal.aborted);
        looking = mine;
        confirm.disabled = true;
        try {
          if (mine) {
            const seen = await look(given, { tell: (...kids) => isDropped() || tell(...kids), signal: AbortSignal.any([closed.signal, mine.signal]) });
            if (isDropped()) return;
            show(told, seen.told);
            looked = seen.verb === null ? null : asked;
            confirm.textContent = seen.verb ?? verb;
            return;
          }
          const end = await send(given, { tell, signal: closed.signal });
          if (typeof end === "string") {
            dialog.close();
            say(end);
          } else {
            show(told, end.stay);
            confirm.remove();
          }
        } catch (error) {
          if (mine && isDropped()) return;
          if (!(error instanceof Refused)) throw error;
          if (mine) show(told);
          const unsure = error.status === 0 || error.status >= 500;
          show(wrong, prose(`${error.message}${unsure && !mine ? " The request may have taken effect: check before you repeat it." : ""}`));
        } finally {
          // Otherwise the form has changed meanwhile, and another look may be in progress.
          if (looking === mine) {
            looking = null;
            confirm.disabled = false;
            // The button that was pressed, with what it does now. A disabled one has lost the focus.
            if (mine || document.activeElement === document.body) confirm.focus();
          }
          if (!mine) done?.();
        }
      },
      // What was looked at is not what would be done now.
      oninput() {
        if (!look) return;
        if (looking) {
          looking.abort();
          looking = null;
          confirm.disabled = false;
        } else if (!looked) return;
        looked = null;
        confirm.textContent = verb;
        show(told);
      },
      onkeydown(event) {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    },
    lead && h("div", { class: "lead" }, lead),
    all.map(control),
    told,
    wrong,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), confirm),
  );
  const dialog = open(title, form);
  dialog.addEventListener("close", () => closed.abort());
  form.elements.reason.focus();
  return dialog;
}
