// Elements from values. Text becomes text nodes and attributes, never markup, so nothing that an order says can become code.
// A new tree is laid over the old one, so that focus, selection and scroll positions stay while data changes.

const SVG = "http://www.w3.org/2000/svg";

// Control characters, line separators, bidirectional controls and the byte order mark, as `shared/src/visible.rs` has them: they
// would act on the text around them, so they are shown as escapes. Line breaks and tabs do no harm here.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
/** `text` with what is hidden in it shown. */
export const visible = (text) => text.replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const shown = (kids) => kids.flat(Infinity)
  .filter((kid) => kid !== null && kid !== undefined && kid !== false)
  .map((kid) => (kid instanceof Node ? kid : visible(String(kid))));

const make = (create) => (tag, props = {}, ...kids) => {
  const node = create(tag);
  node.handlers = {};
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.handlers[name] = node[name] = value;
    else node.setAttribute(name, value === true ? "" : name === "value" || name === "href" ? String(value) : visible(String(value)));
  }
  node.append(...shown(kids));
  return node;
};

/** An HTML element. A property that is a function is a handler (`onclick`); `false` and `null` leave an attribute out. */
export const h = make((tag) => document.createElement(tag));
/** An SVG element. */
export const s = make((tag) => document.createElementNS(SVG, tag));

/** Makes the children of `place` those given. Elements with the same `data-key` stay the same elements. */
export function show(place, ...kids) {
  const tree = document.createElement(place.nodeName);
  tree.append(...shown(kids));
  children(place, tree);
}

const key = (node) => node.dataset?.key ?? null;
// What a person types or opens is theirs.
const OWNED = new Set(["open", "value", "checked"]);

function same(old, next) {
  return old.nodeType === next.nodeType && old.nodeName === next.nodeName && key(old) === key(next);
}

function lay(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !OWNED.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value && !OWNED.has(name)) old.setAttribute(name, value);
  }
  for (const name of Object.keys(old.handlers ?? {})) if (!next.handlers?.[name]) old[name] = null;
  Object.assign(old, next.handlers ?? {});
  old.handlers = next.handlers;
  children(old, next);
}

function children(old, next) {
  const wanted = new Set([...next.childNodes].map(key).filter((k) => k !== null));
  const kept = new Map();
  for (const kid of [...old.childNodes]) {
    const k = key(kid);
    if (k === null) continue;
    if (wanted.has(k)) kept.set(k, kid);
    else kid.remove();
  }
  let place = old.firstChild;
  for (const kid of [...next.childNodes]) {
    const k = key(kid);
    const found = k === null ? place : kept.get(k);
    if (found && same(found, kid)) {
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      lay(found, kid);
    } else {
      old.insertBefore(kid, place);
      if (k === null && found && key(found) === null) {
        place = found.nextSibling;
        found.remove();
      }
    }
  }
  while (place) {
    const following = place.nextSibling;
    place.remove();
    place = following;
  }
}
