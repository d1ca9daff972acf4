// Puts an attention viewer in the place of its picture. `viewer.py` writes this script behind the picture and the data.
(() => {
  "use strict";

  const NAMES = { "␣": "space", "↵": "newline", "⇥": "tab" };
  const NOTHING = { query: null, key: null };
  // In pixels.
  const GAP = 16;
  const [SMALLEST_CELL, LARGEST_CELL] = [2, 28];
  const [SMALLEST_LETTER, LARGEST_LETTER] = [10, 14];
  const [NARROWEST_PANEL, LARGEST_MAP] = [280, 560];
  const ROOM_FOR_LABELS = 60;

  // Colours of text are inherited, so that they suit light and dark pages.
  const STYLE = `
    :host { display: block; font-size: 13px; line-height: 1.4; --accent: #e8590c; }
    :focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
    canvas, .hidden { background: content-box repeating-linear-gradient(-45deg, #8882 0 3px, #888a 3px 4px); }
    .state { min-height: 2.8em; margin: 4px 0; font-weight: 600; }
    .body, .panels { display: flex; flex-wrap: wrap; gap: ${GAP}px; align-items: flex-start; }
    .panels { flex: 1 1 ${NARROWEST_PANEL}px; min-width: 0; }
    .panel { flex: 1 1 0; min-width: min(100%, ${NARROWEST_PANEL}px); }
    .side { width: min-content; min-width: 220px; max-width: 100%; }
    .side > * { margin: 0 0 8px 4px; }
    .heads { padding: 4px; overflow: auto; }
    .row { display: flex; align-items: center; }
    .row > * { box-sizing: border-box; flex: none; width: 50px; text-align: center; }
    .row > [role=rowheader] { width: 4em; overflow-wrap: anywhere; }
    .row canvas { height: 50px; padding: 2px; border: 3px solid transparent; cursor: pointer; }
    .row canvas.pinned { border: 3px dashed; }
    .row canvas[aria-selected=true] { border: 3px solid var(--accent); }
    .scale { display: flex; align-items: center; gap: 6px; white-space: nowrap; }
    .scale i { width: 48px; height: 12px; }
    .scale .hidden { width: 20px; }
    button { padding: 2px 8px; font: inherit; color: inherit; background: none; border: 1px solid; border-radius: 4px; }
    .title { font-weight: 600; }
    .map { display: grid; grid-template-columns: repeat(3, max-content); gap: 2px 4px; padding: 6px 2px;
      overflow: auto; }
    .map .below { grid-column: 3; }
    .map .upright { writing-mode: vertical-rl; transform: rotate(180deg); text-align: center; }
    .cells { position: relative; cursor: crosshair; }
    .cells canvas { display: block; image-rendering: pixelated; }
    .cells div { position: absolute; box-shadow: 0 0 0 2px var(--accent); pointer-events: none; }
    .labels { display: flex; font-family: monospace; line-height: 1; }
    .labels.left { flex-direction: column; }
    .labels span { display: flex; flex: none; align-items: center; justify-content: center; white-space: pre; }
    .labels.left span { justify-content: flex-end; }
    .labels.long span { writing-mode: vertical-rl; justify-content: flex-start; }
    .strip { margin: 2px 0 10px; padding: 2px; font: 15px/1.7 monospace; }
    .strip span { display: inline-block; min-width: 1.1ch; text-align: center; white-space: pre; cursor: pointer; }
    .strip [aria-selected=true] { position: relative; box-shadow: 0 0 0 2px var(--accent); }
    .strip :focus-visible { position: relative; z-index: 1; }
  `;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Of a group of elements Tab reaches one, arrow keys the others.
  function moveFocus(event, group, to) {
    event.preventDefault(); // no scrolling
    for (const member of group) member.tabIndex = -1;
    group[to].tabIndex = 0;
    group[to].focus();
  }

  function between(low, number, high) {
    return Math.min(Math.max(number, low), high);
  }

  function named(labels, at) {
    return `${NAMES[labels[at]] ?? `'${labels[at]}'`} at ${at}`;
  }

  // Where the largest of some weights is, or -1 if all are hidden.
  function largest(weights) {
    return weights.indexOf(Math.max(...weights.filter((weight) => weight !== null)));
  }

  // The weights of all heads, counted through all layers. A weight is 0 to 255, or null where it is hidden.
  class Weights {
    constructor(data, bytes) {
      Object.assign(this, data); // layers, heads, queries, keys, oneText, colours
      const entries = this.queries.length * this.keys.length;
      this.count = this.layers.length * this.heads;
      this.visible = 0;
      this.places = Int32Array.from(bytes.subarray(0, entries), (visible) => (visible ? this.visible++ : -1));
      this.bytes = bytes.subarray(entries);
      if (this.bytes.length !== this.count * this.visible) throw new Error("the weights must fit the labels");
      this.palette = Uint8Array.from(this.colours.match(/../g), (part) => parseInt(part, 16)); // RGBA each
    }

    at(head, query, key) {
      const place = this.places[query * this.keys.length + key];
      return place < 0 ? null : this.bytes[head * this.visible + place];
    }

    row(head, query) {
      return this.keys.map((_, key) => this.at(head, query, key));
    }

    column(head, key) {
      return this.queries.map((_, query) => this.at(head, query, key));
    }

    name(head) {
      return `${this.layers[Math.floor(head / this.heads)]}, head ${head % this.heads}`;
    }

    colour(weight) {
      return `#${this.colours.slice(8 * weight, 8 * weight + 8)}`;
    }

    // A canvas of a pixel for each entry, not painted yet.
    canvas(attributes) {
      return element("canvas", { width: this.keys.length, height: this.queries.length, ...attributes });
    }

    // Hidden entries stay clear, so that the hatching behind them shows.
    paint(canvas, head) {
      const image = new ImageData(canvas.width, canvas.height);
      for (const [entry, place] of this.places.entries()) {
        if (place < 0) continue;
        const weight = this.bytes[head * this.visible + place];
        image.data.set(this.palette.subarray(4 * weight, 4 * weight + 4), 4 * entry);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
  }

  // A text whose characters can be pointed at, coloured by weights.
  class Strip {
    constructor(viewer, side, labels) {
      this.viewer = viewer;
      this.heading = element("div", {});
      this.characters = labels.map((_, at) => this.character(side, labels, at));
      this.element = element("div", { class: `strip ${side}`, role: "listbox", dir: "auto" }, ...this.characters);
      this.element.addEventListener("pointerleave", () => viewer.point(null));
    }

    character(side, labels, at) {
      const attributes = { role: "option", tabindex: at ? -1 : 0, "aria-label": named(labels, at) };
      const character = element("span", attributes, labels[at]);
      const both = this.viewer.weights.oneText; // the same character is a query and a key
      const selected = { query: both || side === "query" ? at : null, key: both || side === "key" ? at : null, side };
      character.addEventListener("pointerenter", () => this.viewer.point(selected));
      character.addEventListener("focus", () => this.viewer.point(selected));
      character.addEventListener("click", () => this.viewer.lock(selected));
      character.addEventListener("keydown", (event) => this.key(event, at));
      return character;
    }

    key(event, at) {
      const last = this.characters.length - 1;
      // In a text from right to left the next character is on the left.
      const right = getComputedStyle(this.element).direction === "rtl" ? -1 : 1;
      const to = { ArrowRight: at + right, ArrowLeft: at - right, Home: 0, End: last }[event.key];
      if (to !== undefined) moveFocus(event, this.characters, between(0, to, last));
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.characters[at].click();
    }

    draw(heading, weights, selected) {
      this.heading.textContent = heading;
      this.element.setAttribute("aria-label", heading);
      for (const [at, character] of this.characters.entries()) {
        const weight = weights[at]; // undefined where there is none
        if (weight !== character.weight) {
          const seen = typeof weight === "number";
          character.style.background = seen ? this.viewer.weights.colour(weight) : "";
          character.style.color = seen ? (weight > 127 ? "black" : "white") : "";
          character.classList.toggle("hidden", weight === null);
          character.weight = weight;
        }
        character.ariaSelected = at === selected;
      }
    }
  }

  // One head: its map with labels, and under it the text twice, by what a character reads and by what reads it.
  class Panel {
    constructor(viewer) {
      this.viewer = viewer;
      const { queries, keys } = viewer.weights;
      this.title = element("div", { class: "title" });
      this.canvas = viewer.weights.canvas({ role: "img" });
      [this.row, this.column] = [element("div", {}), element("div", {})]; // frames around what is selected
      const long = keys.some((key) => [...key].length > 1) ? "long" : "";
      this.left = element("div", { class: "labels left", "aria-hidden": true });
      this.below = element("div", { class: `labels below ${long}`, "aria-hidden": true });
      const map = element("div", { class: "map" }, element("div", { class: "upright" }, "query: reads"), this.left);
      map.append(element("div", { class: "cells" }, this.canvas, this.row, this.column));
      map.append(this.below, element("div", { class: "below" }, "key: is read"));
      this.keys = new Strip(viewer, "key", keys);
      this.queries = new Strip(viewer, "query", queries);
      this.element = element("div", { class: "panel" }, this.title, map);
      for (const strip of [this.keys, this.queries]) this.element.append(strip.heading, strip.element);
      this.canvas.addEventListener("pointermove", (event) => viewer.point(this.cell(event)));
      this.canvas.addEventListener("pointerleave", () => viewer.point(null));
      this.canvas.addEventListener("click", (event) => viewer.lock(this.cell(event)));
    }

    cell(event) {
      const place = (offset, cells) => between(0, Math.floor(offset / this.size), cells - 1);
      const [query, key] = [place(event.offsetY, this.canvas.height), place(event.offsetX, this.canvas.width)];
      return { query, key, side: "both" };
    }

    resize(size) {
      this.size = size;
      this.place(this.canvas, 0, 0, this.canvas.width, this.canvas.height);
      this.label(this.left, this.viewer.weights.queries, "height", "marginBottom");
      this.label(this.below, this.viewer.weights.keys, "width", "marginRight");
    }

    // Where cells are smaller than letters, not every position gets its label.
    label(axis, labels, extent, margin) {
      const every = Math.ceil(SMALLEST_LETTER / this.size);
      axis.style.fontSize = `${between(SMALLEST_LETTER, this.size, LARGEST_LETTER)}px`;
      axis.replaceChildren();
      for (let at = 0; at < labels.length; at += every) {
        const label = element("span", {}, labels[at]);
        label.style[extent] = `${this.size}px`;
        label.style[margin] = `${this.size * (Math.min(every, labels.length - at) - 1)}px`;
        axis.append(label);
      }
    }

    place(box, left, top, width, height) {
      const sides = { left, top, width, height };
      for (const [side, cells] of Object.entries(sides)) box.style[side] = `${cells * this.size}px`;
    }

    draw(head, { query, key }) {
      const { weights } = this.viewer;
      if (head !== this.head) weights.paint(this.canvas, head);
      this.head = head;
      this.title.textContent = weights.name(head);
      this.canvas.ariaLabel = `map of ${weights.name(head)}`;
      this.row.hidden = query === null;
      this.column.hidden = key === null;
      this.place(this.row, 0, query, this.canvas.width, 1);
      this.place(this.column, key, 0, 1, this.canvas.height);
      if (query === null) this.keys.draw("keys: are read", [], key);
      else this.keys.draw(`what ${named(weights.queries, query)} reads`, weights.row(head, query), key);
      if (key === null) this.queries.draw("queries: read", [], query);
      else this.queries.draw(`what reads ${named(weights.keys, key)}`, weights.column(head, key), query);
    }
  }

  class Viewer {
    constructor(weights) {
      this.weights = weights;
      this.chosen = 0;
      this.pinned = null; // the head to compare with
      this.pointed = null; // the characters under the pointer, or with the focus
      this.locked = null; // those that stay, whatever is pointed at
      this.state = element("p", { class: "state", role: "status" });
      this.thumbnails = Array.from({ length: weights.count }, (_, head) => this.thumbnail(head));
      this.compare = element("button", { type: "button" });
      this.compare.addEventListener("click", () => this.pin(this.pinned === null ? this.chosen : null));
      const help = element("div", {}, "Click, or Tab and arrow keys: choose a head, then a character. Click or Enter "
        + "locks it, Escape unlocks it. Shift-click or c: compare two heads.");
      this.side = element("div", { class: "side" }, this.layersByHeads(), this.scale(), this.compare, help);
      this.panels = [new Panel(this), new Panel(this)];
      const panels = element("div", { class: "panels" }, ...this.panels.map((panel) => panel.element));
      this.parts = [element("style", {}, STYLE), this.state, element("div", { class: "body" }, this.side, panels)];
    }

    thumbnail(head) {
      const canvas = this.weights.canvas({ role: "gridcell", "aria-label": this.weights.name(head) });
      this.weights.paint(canvas, head);
      if (canvas.width < 40) canvas.style.imageRendering = "pixelated"; // larger ones are shrunk, which must be smooth
      canvas.addEventListener("click", (event) => (event.shiftKey ? this.pin(head) : this.choose(head)));
      canvas.addEventListener("keydown", (event) => this.moveHead(event, head));
      return canvas;
    }

    layersByHeads() {
      const { layers, heads } = this.weights;
      const row = (name, cells) =>
        element("div", { class: "row", role: "row" }, element("span", { role: "rowheader" }, name), ...cells);
      const top = this.thumbnails.slice(0, heads);
      const names = top.map((_, at) => element("span", { role: "columnheader" }, `head ${at}`));
      const rows = layers.map((layer, at) => row(layer, this.thumbnails.slice(at * heads, (at + 1) * heads)));
      return element("div", { class: "heads", role: "grid", "aria-label": "heads" }, row("", names), ...rows);
    }

    scale() {
      const bar = element("i", {});
      const colours = [0, 51, 102, 153, 204, 255].map((weight) => this.weights.colour(weight));
      bar.style.background = `linear-gradient(to right, ${colours})`;
      const scale = element("div", { class: "scale" }, "0 %", bar, "100 %");
      if (this.weights.places.includes(-1)) scale.append(element("i", { class: "hidden" }), "not visible");
      return scale;
    }

    moveHead(event, head) {
      const { heads } = this.weights;
      const to = head + { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
      if (!(to in this.thumbnails)) return; // another key, or the end
      moveFocus(event, this.thumbnails, to);
      this.choose(to);
    }

    choose(head) {
      this.chosen = head;
      this.draw();
    }

    pin(head) {
      this.pinned = head;
      this.fit();
    }

    point(selected) {
      this.pointed = selected;
      this.drawSelected();
    }

    // To lock what is locked is to unlock it.
    lock(selected) {
      const same = this.locked?.query === selected.query && this.locked?.key === selected.key;
      this.locked = same ? null : selected;
      this.point(same ? selected : null);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey) return; // to save the notebook, for example
      event.stopPropagation(); // d d, meant for nothing here, would delete the cell in JupyterLab
      if (event.key === "c") this.compare.click();
      if (event.key !== "Escape") return;
      this.locked = null;
      this.point(null);
    }

    // The query and the key whose weight is told, if any: a cell of a map, or a locked and another character.
    pair() {
      const { locked, pointed } = this;
      const last = pointed ?? locked;
      if (last?.side === "both") return last;
      if (!locked || !pointed || pointed === locked) return null;
      const pair = pointed.side === "key" ? { ...locked, key: pointed.key } : { ...locked, query: pointed.query };
      return pair.query === null || pair.key === null ? null : pair;
    }

    inWords(head) {
      const { weights } = this;
      const [query, key] = [(at) => named(weights.queries, at), (at) => named(weights.keys, at)];
      const share = (i, j) => `with ${Math.round(weights.at(head, i, j) / 2.55)} %`;
      const pair = this.pair();
      if (pair) {
        const [i, j] = [pair.query, pair.key];
        if (weights.at(head, i, j) === null) return `query ${query(i)} may not read ${key(j)}`;
        return `query ${query(i)} reads ${key(j)} ${share(i, j)}`;
      }
      const { query: i, key: j } = this.locked ?? this.pointed ?? NOTHING;
      const parts = [];
      const most = i === null ? -1 : largest(weights.row(head, i));
      if (most >= 0) parts.push(`query ${query(i)} reads most ${key(most)} ${share(i, most)}`);
      const reader = j === null ? -1 : largest(weights.column(head, j));
      if (reader >= 0) parts.push(`key ${key(j)} is read most by ${query(reader)} ${share(reader, j)}`);
      return parts.join("; ") || "choose a character";
    }

    // Makes cells as large as there is room for; the maps stand beside the thumbnails if both fit.
    fit(width = this.width) {
      this.width = width;
      const beside = width - this.side.offsetWidth - GAP;
      const room = beside < NARROWEST_PANEL ? width : beside;
      const half = (room - GAP) / 2;
      const panel = this.pinned === null || half < NARROWEST_PANEL ? room : half;
      const cells = Math.max(this.weights.queries.length, this.weights.keys.length);
      const size = Math.floor(Math.min(panel - ROOM_FOR_LABELS, LARGEST_MAP) / cells);
      for (const one of this.panels) one.resize(between(SMALLEST_CELL, size, LARGEST_CELL));
      this.draw();
    }

    draw() {
      for (const [head, thumbnail] of this.thumbnails.entries()) {
        thumbnail.tabIndex = head === this.chosen ? 0 : -1;
        thumbnail.ariaSelected = head === this.chosen;
        thumbnail.classList.toggle("pinned", head === this.pinned);
      }
      this.compare.textContent = this.pinned === null ? "compare with this head (c)" : "stop comparing (c)";
      this.panels[1].element.hidden = this.pinned === null;
      this.drawSelected();
    }

    drawSelected() {
      const heads = [this.chosen, this.pinned].filter((head) => head !== null);
      const selected = this.locked ?? this.pointed ?? NOTHING;
      for (const [at, head] of heads.entries()) this.panels[at].draw(head, selected);
      const words = heads.map((head) => `${this.weights.name(head)}: ${this.inWords(head)}`);
      this.state.textContent = words.join(" · ") + (this.locked ? " (locked)" : "");
    }
  }

  async function inflated(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function start(root) {
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const viewer = new Viewer(new Weights(data, await inflated(data.weights)));
    viewer.fit(LARGEST_MAP); // what fails is to fail here, before the picture goes
    root.addEventListener("keydown", (event) => viewer.key(event));
    root.attachShadow({ mode: "open" }).append(...viewer.parts); // and the picture is no longer shown
    new ResizeObserver(() => viewer.fit(root.clientWidth)).observe(root);
  }

  // Notebooks differ in where they put a script that they run, so it looks for viewers that none has started.
  for (const root of document.querySelectorAll(".attention-viewer")) {
    if (root.started) continue;
    root.started = true;
    start(root).catch((error) => console.warn("The picture stays in the place of the attention viewer:", error));
  }
})();
