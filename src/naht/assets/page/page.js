"use strict";
// Everything the page does. Data become text and attributes, never markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function words(value, digits) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const places = digits ?? (Number.isInteger(value) ? 0 : size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
    return value.toFixed(places).replace("-", "−");
  }
  const large = (v) => (Math.abs(v) >= 1e6 ? `${words(v / 1e6)}M` : Math.abs(v) >= 1e4 ? `${words(v / 1e3)}k` : words(v));

  // Light and dark.

  const repaint = new Set(); // what draws itself and must know about new colours or sizes
  function colour(name) {
    // Asked of an element: a custom property itself would still say light-dark(...).
    const probe = document.getElementById("tip");
    probe.style.caretColor = `var(--${name})`;
    return getComputedStyle(probe).caretColor;
  }
  let palette = {};
  function readColours() {
    for (const name of ["paper", "field", "ink", "quiet", "line", "accent", "ours", "stranger", "prey", "enemy", "food", "obstacle", "health", "shield", "lost"])
      palette[name] = colour(name);
    for (const paint of repaint) paint();
  }
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
  function showTheme() {
    const button = document.getElementById("theme");
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    readColours();
  }
  function remember(theme) {
    try {
      localStorage.setItem("naht-theme", theme);
    } catch {
      // A page opened from a disk may not be allowed to remember anything.
    }
  }
  try {
    const kept = localStorage.getItem("naht-theme");
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch {
    // As above.
  }
  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remember(document.documentElement.dataset.theme);
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);

  // What is said on hover and focus.

  const tip = document.getElementById("tip");
  let saidAt = 0; // how far down the page was
  function say(text, x, y) {
    tip.hidden = !text;
    if (!text) return;
    saidAt = scrollY;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    const below = y + 18 + box.height < innerHeight;
    tip.style.left = `${clamp(x + 14, 6, Math.max(6, innerWidth - box.width - 6))}px`;
    tip.style.top = `${below ? y + 18 : Math.max(6, y - box.height - 12)}px`;
  }
  addEventListener("scroll", () => Math.abs(scrollY - saidAt) > 8 && say(""), { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && say(""));

  // Downloads.

  function save(name, type, text) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function csv({ columns, rows }) {
    const cell = (v) => (v === null ? "" : /[",\r\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
    return [columns, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
  }
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    for (const gone of copy.querySelectorAll(".off:not(.key), .cursor")) gone.remove();
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = data.chartStyle;
    copy.prepend(style);
    return new XMLSerializer().serializeToString(copy);
  }

  // Figures: names switch series on and off, marks say their numbers.

  const SVG = "http://www.w3.org/2000/svg";
  function drawn(tag, attributes) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function setUpFigure(figure) {
    const name = figure.dataset.figure;
    const { kind, columns, groups } = data.figures[name];
    const rows = { kind, columns, rows: groups.flatMap(([...whose]) => whose.pop().map((row) => [...whose, ...row])) };
    const numeric = kind === "lines" || kind === "scatter";
    for (const title of all("[tabindex='-1'] > title", figure)) {
      title.parentNode.setAttribute("aria-label", title.textContent);
      title.remove(); // on hover, we say it instead
    }
    figure.querySelector("button.svg").addEventListener("click", () => {
      const shown = all("svg.chart", figure).find((svg) => svg.getBoundingClientRect().width > 0);
      save(`${name}.svg`, "image/svg+xml", standalone(shown));
    });
    figure.querySelector("button.csv").addEventListener("click", () => save(`${name}.csv`, "text/csv", csv(rows)));

    function toggle(key) {
      const off = !key.classList.contains("off");
      for (const part of all("[data-series]", figure)) {
        if (part.dataset.series !== key.dataset.series) continue;
        part.classList.toggle("off", off);
        if (part.matches(".key")) part.setAttribute("aria-pressed", String(!off));
      }
    }
    for (const key of all(".key", figure)) {
      key.addEventListener("click", () => toggle(key));
      key.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle(key);
      });
    }
    for (const svg of all("svg.chart", figure)) {
      setUpMarks(svg);
      if (numeric) for (const panel of all(".panel", svg)) setUpPanel(svg, panel, rows);
    }
  }

  // One mark of a figure is in the order of focus; arrows go on to the others.
  function setUpMarks(svg) {
    const marks = all("[aria-label][tabindex='-1']", svg);
    const numbers = (mark) => mark.getAttribute("aria-label").replaceAll("; ", "\n");
    if (marks.length) marks[0].setAttribute("tabindex", "0");
    marks.forEach((mark, i) => {
      const tell = () => {
        const box = mark.getBoundingClientRect();
        say(numbers(mark), box.left + Math.min(box.width / 2, 60), box.top + Math.min(box.height, 24));
      };
      mark.addEventListener("focus", tell);
      mark.addEventListener("blur", () => say(""));
      mark.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        for (let k = i + by; k >= 0 && k < marks.length; k += by) {
          if (marks[k].classList.contains("off")) continue;
          mark.setAttribute("tabindex", "-1");
          marks[k].setAttribute("tabindex", "0");
          marks[k].focus();
          break;
        }
      });
      if (svg.querySelector(".panel[data-axes]") && !mark.matches(".level")) return; // panels speak for their lines
      mark.addEventListener("pointermove", (event) => say(numbers(mark), event.clientX, event.clientY));
      mark.addEventListener("pointerleave", () => say(""));
    });
  }

  // In panels with numeric axes the nearest point answers: of a scatter that one, of lines all at the same place.
  function setUpPanel(svg, panel, { kind, columns, rows }) {
    const [x0, x1, left, right, y0, y1, bottom, top] = panel.dataset.axes.split(" ").map(Number);
    const atX = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    const atY = (y) => bottom + ((y - y0) / (y1 - y0)) * (top - bottom);
    const title = panel.querySelector(".title")?.textContent ?? "";
    const points = rows.filter((row) => (row[0] ?? "") === title && typeof row[3] === "number");
    const cursor = drawn("g", { class: "cursor" });
    panel.append(cursor);
    const inside = (x, y) => x >= left - 8 && x <= right + 8 && y >= top - 8 && y <= bottom + 8;
    function leave() {
      cursor.replaceChildren();
      say("");
    }
    function point(event) {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      if (!inside(at.x, at.y)) return;
      const off = new Set(all(".key.off", svg).map((key) => key.dataset.series));
      const shown = points.filter((row) => !off.has(row[1]));
      if (!shown.length) return leave();
      cursor.replaceChildren();
      const dot = (row) => {
        cursor.append(drawn("circle", { cx: atX(row[3]), cy: atY(row[4]), r: 4.5, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
      };
      const range = (row) => (row[5] === null ? words(row[4]) : `${words(row[4])}  [${words(row[5])}, ${words(row[6])}]`);
      if (kind === "scatter") {
        const far = (row) => Math.hypot(atX(row[3]) - at.x, atY(row[4]) - at.y);
        const nearest = shown.reduce((a, b) => (far(b) < far(a) ? b : a));
        if (far(nearest) > 30) return leave();
        dot(nearest);
        const note = columns.indexOf("note");
        return say([nearest[1], `${words(nearest[3])}, ${words(nearest[4])}`, note >= 0 ? nearest[note] : ""].filter(Boolean).join("\n"), event.clientX, event.clientY);
      }
      const nearestX = shown.reduce((a, b) => (Math.abs(atX(b[3]) - at.x) < Math.abs(atX(a[3]) - at.x) ? b : a))[3];
      const here = shown.filter((row) => Math.abs(row[3] - nearestX) < 1e-9 * Math.max(1, Math.abs(nearestX)));
      cursor.append(drawn("path", { d: `M${atX(nearestX)} ${bottom}V${top}`, stroke: "currentColor", "stroke-width": 1, opacity: 0.6 }));
      here.forEach(dot);
      here.sort((a, b) => b[4] - a[4]);
      say([`${columns[3]} ${large(nearestX)}`, ...here.map((row) => `${row[1]}  ${range(row)}`)].join("\n"), event.clientX, event.clientY);
    }
    svg.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      if (inside(at.x, at.y)) point(event);
      else if (cursor.childNodes.length) leave();
    });
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
  }
  all("figure[data-figure]").forEach(setUpFigure);

  // Tables.

  function sortBy(table, header) {
    const column = [...header.parentNode.children].indexOf(header);
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
    };
    const rows = [...body.rows];
    const numeric = rows.some((row) => typeof key(row) === "number");
    const before = header.getAttribute("aria-sort");
    // High numbers and early letters are what one looks for first.
    const up = before ? before !== "ascending" : !numeric;
    rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (numeric && (typeof x !== "number" || typeof y !== "number")) return (typeof y === "number") - (typeof x === "number");
      const order = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
      return up ? order : -order;
    });
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  }
  for (const table of all("table.sortable"))
    for (const header of all("thead th", table)) header.firstElementChild?.addEventListener("click", () => sortBy(table, header));
  for (const box of all(".table[data-table]")) {
    const rows = data.tables[box.dataset.table];
    box.querySelector("button.csv").addEventListener("click", () => save(`${box.dataset.table}.csv`, "text/csv", csv(rows)));
  }
  for (const input of all("input.filter")) {
    const rows = all("table.runs tbody tr", input.closest("section"));
    input.addEventListener("input", () => {
      const sought = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      for (const row of rows) {
        row.hidden = !sought.every((word) => row.textContent.toLowerCase().includes(word));
        found += !row.hidden;
      }
      input.closest("p").querySelector(".found").textContent = sought.length ? `${found} of ${rows.length}` : "";
    });
  }

  // Folded parts are printed closed.

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details[open]");
    for (const part of opened) part.open = false;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = true;
  });

  // Episodes.

  async function inflate(text) {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  // Arrays of an episode as functions of (thing..., step). Stored are differences along time, the last axis.
  async function unpack(episode) {
    if (episode.unpacked) return episode.unpacked;
    const buffer = await inflate(episode.bytes);
    const result = {};
    let start = 0;
    for (const [name, type, shape, low, grain] of episode.arrays) {
      const size = shape.reduce((a, b) => a * b, 1);
      const time = shape[shape.length - 1];
      const values = type === "int16" ? new Int16Array(size) : new Uint8Array(size);
      const bytes = new DataView(buffer, start, size * values.BYTES_PER_ELEMENT);
      for (let i = 0; i < size; i++) {
        const step = type === "int16" ? bytes.getInt16(2 * i, true) : bytes.getUint8(i);
        values[i] = step + (i % time ? values[i - 1] : 0);
      }
      start += size * values.BYTES_PER_ELEMENT;
      const number = type === "uint8" ? (v) => v : (v) => (v < 0 ? NaN : low + v * grain);
      result[name] = (...index) => number(values[index.reduce((at, k, axis) => at * shape[axis] + k, 0)]);
    }
    episode.unpacked = result;
    return result;
  }

  const TRAIL = 12;
  const RATE = 8; // steps per second at normal speed

  // A world on a canvas: who is where at a time, which may lie between two steps.
  class World {
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
    }
    show(episode, arrays) {
      this.episode = episode;
      this.arrays = arrays;
      const [left, bottom, right, top] = episode.bounds;
      this.shape = clamp((top - bottom) / (right - left), 0.55, 1.25);
    }
    resize() {
      const width = this.canvas.parentNode.clientWidth;
      if (!width || !this.episode) return false;
      const ratio = devicePixelRatio || 1;
      const height = Math.round(width * this.shape);
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
        this.canvas.style.aspectRatio = `${width} / ${height}`;
      }
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const [left, bottom, right, top] = this.episode.bounds;
      this.width = width;
      this.height = height;
      this.scale = Math.min(width / (right - left), height / (top - bottom));
      this.middle = [(left + right) / 2, (bottom + top) / 2];
      return true;
    }
    at(x, y) {
      return [this.width / 2 + (x - this.middle[0]) * this.scale, this.height / 2 - (y - this.middle[1]) * this.scale];
    }
    place(thing, time) {
      const step = Math.min(Math.floor(time), this.episode.steps);
      const next = Math.min(step + 1, this.episode.steps);
      const share = time - step;
      const mix = (axis) => {
        const here = this.arrays.places(thing, axis, step);
        return here + (this.arrays.places(thing, axis, next) - here) * share;
      };
      return this.at(mix(0), mix(1));
    }
    radius(thing) {
      const smallest = this.episode.kinds[thing] === "obstacle" ? 2 : this.episode.kinds[thing] === "prey" ? 5 : this.width > 360 ? 8.5 : 6.5;
      return Math.max(this.episode.radii[thing] * this.scale, smallest);
    }
    alive(thing, step) {
      return !this.arrays.health || this.arrays.health(thing, step) > 0;
    }
    // Whether an agent can't see a thing for its distance.
    unseen(agent, thing, step) {
      const { sight, levels, seats } = this.episode;
      const [from, to] = [agent, thing].map((i) => [this.arrays.places(i, 0, step), this.arrays.places(i, 1, step)]);
      if (sight === null) return false;
      if (!levels.length) return Math.hypot(to[0] - from[0], to[1] - from[1]) >= sight;
      // As lbforaging has it: near the upper and left edges, players are seen from further away than food.
      const last = (cell) => (thing < seats.length ? Math.max(cell - sight, 0) + 2 * sight : cell + sight);
      const beyond = (at, cell) => cell < at - sight - 0.5 || cell > last(at) + 0.5;
      return beyond(from[0], to[0]) || beyond(-from[1], -to[1]);
    }
    // What a thing is called, and in which state it is.
    name(thing) {
      const { seats, kinds, units, levels } = this.episode;
      const kind = units[thing] ?? (thing in levels ? `level ${levels[thing]}` : "");
      if (thing < seats.length) return [`agent ${thing + 1} (${seats[thing]})`, kind].filter(Boolean).join(", ");
      return [kinds[thing] === "enemy" ? `enemy ${thing - seats.length + 1}` : kinds[thing], kind].filter(Boolean).join(", ");
    }
    state(thing, step) {
      if (!this.arrays.health) return "";
      if (this.episode.levels.length) return this.alive(thing, step) ? "" : "was taken";
      if (!this.alive(thing, step)) return "has fallen";
      const share = (what) => `${what} ${Math.round(this.arrays[what](thing, step) / 2.55)}\u00a0%`;
      return [share("health"), this.arrays.shield ? share("shield") : ""].filter(Boolean).join(", ");
    }
    colour(thing) {
      if (thing < this.episode.seats.length) return this.episode.controlled[thing] ? palette.ours : palette.stranger;
      return palette[this.episode.kinds[thing]] ?? palette.quiet;
    }
    disc(x, y, r) {
      this.context.beginPath();
      this.context.arc(x, y, r, 0, 2 * Math.PI);
    }
    draw(time, selected, ghosts) {
      if (!this.resize()) return;
      const { context: c, episode } = this;
      const step = Math.min(Math.floor(time), episode.steps);
      const team = episode.seats.length;
      c.clearRect(0, 0, this.width, this.height);
      c.fillStyle = palette.field;
      c.fillRect(0, 0, this.width, this.height);
      if (episode.ground) this.beyond(episode.ground);
      if (episode.levels.length) this.cells(episode.ground);
      const things = episode.kinds.map((_, i) => i);
      for (const i of things.filter((i) => episode.kinds[i] === "obstacle")) {
        this.disc(...this.place(i, time), this.radius(i));
        c.fillStyle = palette.obstacle;
        c.fill();
      }
      const moving = things.filter((i) => episode.kinds[i] !== "obstacle");
      c.lineCap = "round";
      for (const i of moving) {
        c.strokeStyle = this.colour(i);
        for (let t = Math.max(0, step - TRAIL); t <= step && this.alive(i, step); t++) {
          const end = Math.min(t + 1, time);
          if (end <= t) continue;
          c.globalAlpha = 0.05 + 0.4 * Math.max(0, 1 - (time - t) / TRAIL);
          c.lineWidth = 2;
          c.beginPath();
          c.moveTo(...this.place(i, t));
          c.lineTo(...this.place(i, end));
          c.stroke();
        }
      }
      c.globalAlpha = 1;
      for (const i of moving.filter((i) => !this.alive(i, step))) this.fallen(i, time);
      if (selected !== null && this.alive(selected, step)) this.ranges(selected, time);
      const shots = this.shots(time);
      for (const shot of shots) this.shot(shot);
      for (const ghost of ghosts ?? []) this.ghost(ghost, time);
      const living = moving.filter((i) => this.alive(i, step));
      for (const i of living.filter((i) => i >= team)) this.other(i, time);
      for (const i of living.filter((i) => i < team)) this.agent(i, time, i === selected);
      for (const shot of shots.filter((s) => s.fired)) this.hitMark(shot);
      if (this.arrays.health && !episode.levels.length) for (const i of living) this.bars(i, time, step);
    }
    // Where nobody can go.
    beyond([left, bottom, right, top]) {
      const c = this.context;
      const [[x0, y0], [x1, y1]] = [this.at(left, top), this.at(right, bottom)];
      c.fillStyle = palette.obstacle;
      c.globalAlpha = 0.5;
      c.beginPath();
      c.rect(0, 0, this.width, this.height);
      c.rect(x0, y0, x1 - x0, y1 - y0);
      c.fill("evenodd");
      c.globalAlpha = 1;
    }
    cells([left, bottom, right, top]) {
      const c = this.context;
      c.beginPath();
      const line = (from, to) => {
        c.moveTo(...this.at(...from));
        c.lineTo(...this.at(...to));
      };
      for (let x = left + 1; x < right; x++) line([x, bottom], [x, top]);
      for (let y = bottom + 1; y < top; y++) line([left, y], [right, y]);
      c.strokeStyle = palette.line;
      c.lineWidth = 1;
      c.stroke();
    }
    // How far an agent sees (dashed) and shoots.
    ranges(i, time) {
      const { context: c, episode } = this;
      const [x, y] = this.place(i, time);
      c.strokeStyle = palette.quiet;
      c.lineWidth = 1.2;
      if (episode.sight !== null) {
        const side = (2 * episode.sight + 1) * this.scale;
        if (!episode.levels.length) this.disc(x, y, episode.sight * this.scale);
        else {
          c.beginPath();
          c.rect(x - side / 2, y - side / 2, side, side);
        }
        c.fillStyle = palette.ours;
        c.globalAlpha = 0.06;
        c.fill();
        c.globalAlpha = 0.7;
        c.setLineDash([5, 5]);
        c.stroke();
        c.setLineDash([]);
      }
      if (episode.reach !== null) {
        this.disc(x, y, episode.reach * this.scale);
        c.globalAlpha = 0.5;
        c.stroke();
      }
      c.globalAlpha = 1;
    }
    // Who shoots at whom, or tries to, in the step that leads to a time: lines from edge to edge, a little to the right,
    // so that those who shoot at each other have one each.
    shots(time) {
      const step = Math.ceil(time) - 1;
      if (!this.arrays.shots || step < 0) return [];
      return this.episode.kinds.flatMap((_, shooter) => {
        const code = this.arrays.shots(shooter, step) - 1;
        if (code < 0) return [];
        const victim = code >> 1;
        const [[x, y], [tx, ty]] = [this.place(shooter, time), this.place(victim, time)];
        const far = Math.max(Math.hypot(tx - x, ty - y), 1e-6);
        const [dx, dy] = [(tx - x) / far, (ty - y) / far];
        const end = far - this.radius(victim);
        const start = Math.min(this.radius(shooter) + 2, end);
        const along = (d) => [x - 2 * dy + d * dx, y + 2 * dx + d * dy];
        return [{ shooter, fired: code % 2 === 1, from: along(start), to: along(end) }];
      });
    }
    shot({ shooter, fired, from, to }) {
      const c = this.context;
      c.strokeStyle = this.colour(shooter);
      c.globalAlpha = fired ? 0.85 : 0.3;
      c.lineWidth = fired ? 2 : 1;
      c.beginPath();
      c.moveTo(...from);
      c.lineTo(...to);
      c.stroke();
      c.globalAlpha = 1;
    }
    // Over the discs: of units that touch, it is all one sees.
    hitMark({ shooter, to }) {
      const c = this.context;
      this.disc(...to, 3.2);
      c.fillStyle = this.colour(shooter);
      c.fill();
      c.strokeStyle = palette.paper;
      c.lineWidth = 1;
      c.stroke();
    }
    number(text, x, y, r) {
      const c = this.context;
      c.font = `600 ${clamp(r * (text.length > 1 ? 0.95 : 1.05), 8, 15)}px system-ui, sans-serif`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText(text, x, y + 0.5);
    }
    agent(i, time, selected) {
      const c = this.context;
      const [x, y] = this.place(i, time);
      const r = this.radius(i);
      if (selected) {
        this.disc(x, y, r + 5);
        c.strokeStyle = palette.ink;
        c.lineWidth = 2;
        c.stroke();
      }
      this.disc(x, y, r);
      c.lineWidth = 2.5;
      if (this.episode.controlled[i]) {
        c.fillStyle = palette.ours;
        c.fill();
      } else {
        c.fillStyle = palette.paper;
        c.fill();
        c.strokeStyle = palette.stranger;
        c.setLineDash([4, 2.5]);
        c.stroke();
        c.setLineDash([]);
      }
      c.fillStyle = this.episode.controlled[i] ? palette.paper : palette.ink;
      this.number(String(i + 1), x, y, r);
      if (i in this.episode.levels) this.level(this.episode.levels[i], x + 0.75 * r, y + 0.75 * r, 0.5 * r);
    }
    // How strong somebody is.
    level(level, x, y, r) {
      const c = this.context;
      this.disc(x, y, r);
      c.fillStyle = palette.paper;
      c.fill();
      c.strokeStyle = palette.ink;
      c.lineWidth = 1;
      c.stroke();
      c.fillStyle = palette.ink;
      this.number(String(level), x, y, r);
    }
    other(i, time) {
      const c = this.context;
      const [x, y] = this.place(i, time);
      const r = this.radius(i);
      c.fillStyle = this.colour(i);
      if (this.episode.kinds[i] === "enemy" || this.episode.kinds[i] === "food") {
        c.fillRect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r); // no colour needed to see who is who
        c.fillStyle = palette.paper;
        this.number(String(this.episode.levels[i] ?? i - this.episode.seats.length + 1), x, y, 0.9 * r);
      } else {
        this.disc(x, y, r);
        c.fill();
        this.disc(x, y, r + 2.5);
        c.strokeStyle = this.colour(i);
        c.globalAlpha = 0.4;
        c.lineWidth = 1.5;
        c.stroke();
        c.globalAlpha = 1;
      }
    }
    fallen(i, time) {
      const c = this.context;
      const [x, y] = this.place(i, time);
      const r = 0.55 * this.radius(i);
      c.strokeStyle = this.colour(i);
      c.globalAlpha = 0.45;
      c.lineWidth = 2;
      c.beginPath();
      c.moveTo(x - r, y - r);
      c.lineTo(x + r, y + r);
      c.moveTo(x + r, y - r);
      c.lineTo(x - r, y + r);
      c.stroke();
      c.globalAlpha = 1;
    }
    // What is left of a unit, on its upper edge: in a crowd, anything further up would cover a neighbour.
    bars(i, time, step) {
      const c = this.context;
      const [x, y] = this.place(i, time);
      const names = this.arrays.shield ? ["shield", "health"] : ["health"];
      const [width, thick] = [Math.max(1.8 * this.radius(i), 13), names.length > 1 ? 2.5 : 3];
      let top = y - this.radius(i) - names.length * (thick + 0.75) + 1.5; // numbers stay readable
      for (const name of names) {
        c.fillStyle = palette.lost;
        c.fillRect(x - width / 2 - 0.75, top - 0.75, width + 1.5, thick + 1.5);
        c.fillStyle = palette[name];
        c.fillRect(x - width / 2, top, (width * this.arrays[name](i, step)) / 255, thick);
        top += thick + 0.75;
      }
    }
    // Where somebody is thought to be: the less sure, the paler.
    // Of somebody out of sight it is all the agent has: it carries the number.
    ghost({ seat, x, y, sure, unseen }, time) {
      const c = this.context;
      const [gx, gy] = this.at(x, y);
      const [px, py] = this.place(seat, time);
      const r = this.radius(seat);
      c.globalAlpha = unseen ? 0.9 : 0.18 + 0.6 * sure;
      c.strokeStyle = this.colour(seat);
      c.lineWidth = 1.2;
      c.setLineDash([2, 3]);
      c.beginPath();
      c.moveTo(px, py);
      c.lineTo(gx, gy);
      c.stroke();
      c.setLineDash([]);
      this.disc(gx, gy, r * (1.5 - 0.5 * sure));
      c.fillStyle = this.colour(seat);
      c.globalAlpha *= 0.45;
      c.fill();
      c.globalAlpha = 1;
      if (!unseen) return;
      c.stroke();
      c.fillStyle = palette.ink;
      this.number(String(seat + 1), gx, gy, r);
    }
    // The thing of some under a point of the screen.
    hit(clientX, clientY, time, things) {
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [clientX - box.left, clientY - box.top];
      let best = null;
      let least = Infinity;
      for (const i of things) {
        const [px, py] = this.place(i, time);
        const far = Math.hypot(px - x, py - y);
        if (far < Math.max(this.radius(i) + 4, 18) && far < least) [best, least] = [i, far];
      }
      return best;
    }
  }

  // Runs a clock from frame to frame.
  class Clock {
    constructor(tick) {
      this.tick = tick;
      this.playing = false;
    }
    start() {
      if (this.playing) return;
      this.playing = true;
      let last = null;
      const frame = (now) => {
        if (!this.playing) return;
        this.tick(last === null ? 0 : Math.min(now - last, 100) / 1000);
        last = now;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }
    stop() {
      this.playing = false;
    }
  }

  function setPressed(button, playing) {
    button.setAttribute("aria-pressed", String(playing));
    button.setAttribute("aria-label", playing ? "Pause" : "Play");
  }

  const ended = (episode) => [episode.outcome, `return ${words(episode.return)}`].filter(Boolean).join(", ");

  // The small moving picture of the first screen.
  async function setUpHero(root, episode, watch) {
    const world = new World(root.querySelector("canvas"));
    const button = root.querySelector(".play");
    world.show(episode, await unpack(episode));
    const label = `An episode of ${episode.task}: ${episode.method} with ${episode.strangers}`;
    world.canvas.setAttribute("role", "img");
    world.canvas.setAttribute("aria-label", label);
    root.querySelector(".what").textContent = `${episode.task}: ${episode.method} (filled) with ${episode.strangers} (dashed), ${ended(episode)}`;
    let time = calm.matches ? Math.floor(episode.steps / 2) : 0;
    let visible = true;
    const paint = () => world.draw(time, null, null);
    const clock = new Clock((seconds) => {
      time += visible ? seconds * RATE : 0;
      if (time > episode.steps + RATE) time = 0;
      world.draw(Math.min(time, episode.steps), null, null);
    });
    const play = (on) => {
      if (on) clock.start();
      else clock.stop();
      setPressed(button, on);
    };
    button.addEventListener("click", () => play(!clock.playing));
    new IntersectionObserver((seen) => (visible = seen[0].isIntersecting)).observe(root);
    root.querySelector(".more").addEventListener("click", () => watch(episode));
    repaint.add(paint);
    new ResizeObserver(paint).observe(root);
    play(!calm.matches);
    paint();
  }

  class Player {
    constructor(root, episodes) {
      this.root = root;
      this.episodes = episodes;
      this.time = 0;
      this.speed = 1;
      this.selected = 0;
      this.build();
      this.world = new World(this.canvas);
      this.clock = new Clock((seconds) => this.advance(seconds));
      this.root.addEventListener("keydown", (event) => this.key(event));
      repaint.add(() => this.paint(true));
      new ResizeObserver(() => this.paint(true)).observe(root);
      this.choose({});
    }

    build() {
      const select = (name) => {
        const list = element("select", { on: { change: () => this.choose(this.wishes(name)) } });
        list.dataset.choice = name;
        return list;
      };
      this.choices = { task: select("task"), method: select("method"), strangers: select("strangers"), episode: select("episode") };
      const titles = { task: "Task", method: "Method", strangers: "Strangers", episode: "Episode" };
      const choose = element("div", { class: "choose" }, ...Object.entries(this.choices).map(([name, list]) => element("label", {}, titles[name], list)));

      this.canvas = element("canvas", { tabindex: 0, role: "img" });
      this.canvas.addEventListener("pointerdown", (event) => {
        const seat = this.world.hit(event.clientX, event.clientY, this.time, this.episode.seats.keys());
        if (seat !== null) this.select(seat);
      });
      this.canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.tell(event));
      this.canvas.addEventListener("pointerleave", () => say(""));
      this.seats = element("div", { class: "seats", role: "group", "aria-label": "Agents" });
      this.legend = element("p", { class: "legend" });
      this.beliefs = element("div", { class: "beliefs" });
      const stage = element("div", { class: "stage" }, this.canvas);

      this.play = element("button", { type: "button", class: "play", "aria-label": "Play", "aria-pressed": "false", on: { click: () => this.toggle() } });
      const jump = (text, label, to) => element("button", { type: "button", "aria-label": label, title: label, on: { click: () => this.go(to()) } }, text);
      const steps = element(
        "div",
        { class: "steps" },
        jump("⇤", "To the start", () => 0),
        jump("←", "One step back", () => Math.ceil(this.time) - 1),
        jump("→", "One step on", () => Math.floor(this.time) + 1),
        jump("⇥", "To the end", () => this.episode.steps),
      );
      this.events = element("div", { class: "events" });
      this.curve = element("canvas");
      this.scrub = element("div", { class: "scrub", role: "slider", tabindex: 0, "aria-label": "Step", "aria-valuemin": 0 }, this.curve);
      this.drag(this.scrub);
      const speeds = [0.5, 1, 2, 4, 8].map((s) => element("option", { value: s }, `${s}×`));
      this.speeds = element("select", { "aria-label": "Speed", on: { change: () => (this.speed = Number(this.speeds.value)) } }, ...speeds);
      this.speeds.value = "1";
      const transport = element("div", { class: "transport" }, this.play, steps, element("div", { class: "track" }, this.events, this.scrub), this.speeds);
      this.now = element("p", { class: "now" });
      const keys = element("p", { class: "keys" });
      for (const [key, what] of [["Space", "plays"], ["← →", "step"], ["Home End", ""], ["1 2 3", "choose an agent"], ["[ ]", "jump to events"]])
        keys.append(element("kbd", {}, key), ` ${what}  `);
      this.parts = element("div", { class: "parts" }, stage, transport, this.now, element("div", { class: "who" }, this.seats, this.legend), this.beliefs);
      this.root.append(choose, this.parts, keys);
    }

    // What is under the mouse.
    tell(event) {
      const { world, episode, selected } = this;
      const step = Math.min(Math.floor(this.time), episode.steps);
      const things = episode.kinds.flatMap((kind, i) => (kind === "obstacle" ? [] : [i]));
      const thing = world.hit(event.clientX, event.clientY, this.time, things);
      if (thing === null) return say("");
      const far = thing !== selected && world.alive(thing, step) && world.alive(selected, step) && world.unseen(selected, thing, step);
      say([world.name(thing), world.state(thing, step), far ? `out of sight of agent ${selected + 1}` : ""].filter(Boolean).join("\n"), event.clientX, event.clientY);
    }

    // Dragging over an element whose width is the episode's length.
    drag(over) {
      const to = (event) => {
        const box = over.getBoundingClientRect();
        this.pause();
        this.go(Math.round(((event.clientX - box.left) / box.width) * this.episode.steps));
      };
      over.addEventListener("pointerdown", (event) => {
        over.setPointerCapture(event.pointerId);
        to(event);
      });
      over.addEventListener("pointermove", (event) => over.hasPointerCapture(event.pointerId) && to(event));
    }

    wishes(changed) {
      const order = ["task", "method", "strangers", "episode"];
      const kept = order.slice(0, order.indexOf(changed) + 1);
      const wish = Object.fromEntries(kept.map((name) => [name, this.choices[name].value]));
      // What was chosen below stays, if it exists there, too.
      for (const name of order.slice(kept.length, 3)) wish[name] = this.choices[name].value;
      return wish;
    }

    choose(wish) {
      let left = this.episodes;
      for (const name of ["task", "method", "strangers"]) {
        const there = [...new Set(left.map((e) => e[name]))];
        const value = there.includes(wish[name]) ? wish[name] : there[0];
        this.choices[name].replaceChildren(...there.map((text) => element("option", { value: text }, text)));
        this.choices[name].value = value;
        left = left.filter((e) => e[name] === value);
      }
      const entry = (e) => element("option", { value: this.episodes.indexOf(e) }, `${e.label} (${ended(e)})`);
      this.choices.episode.replaceChildren(...left.map(entry));
      const chosen = left.find((e) => String(this.episodes.indexOf(e)) === String(wish.episode)) ?? left[0];
      this.choices.episode.value = String(this.episodes.indexOf(chosen));
      return this.open(chosen);
    }

    watch(episode) {
      return this.choose({ task: episode.task, method: episode.method, strangers: episode.strangers, episode: this.episodes.indexOf(episode) });
    }

    async open(episode) {
      this.pause();
      const arrays = await unpack(episode);
      this.episode = episode;
      this.arrays = arrays;
      this.time = 0;
      this.drawnStep = -1;
      this.world.show(episode, arrays);
      const about = `${episode.task}, ${episode.method} with ${episode.strangers}: the world from above`;
      this.canvas.setAttribute("aria-label", about);
      this.scrub.setAttribute("aria-valuemax", episode.steps);
      this.seats.replaceChildren(
        ...episode.seats.map((name, i) =>
          element("button", { type: "button", on: { click: () => this.select(i) }, title: [episode.controlled[i] ? "one of ours" : "a stranger", episode.units[i]].filter(Boolean).join(", ") }, this.badge(i), element("span", {}, name)),
        ),
      );
      this.parts.classList.toggle("battle", !!arrays.shots);
      this.showLegend();
      // Marks may overlap; a pointer means the nearest.
      const nearest = ({ clientX }) => {
        const box = this.events.getBoundingClientRect();
        const far = ([step]) => Math.abs(box.left + (step / episode.steps) * box.width - clientX);
        return episode.events.reduce((a, b) => (far(b) < far(a) ? b : a));
      };
      const marks = episode.events.map(([step, what]) => {
        const mark = element("button", { type: "button", "aria-label": `step ${step}: ${what}`, on: { click: (event) => this.go(event.detail ? nearest(event)[0] : step) } });
        mark.style.left = `${(100 * step) / episode.steps}%`;
        mark.addEventListener("pointermove", (event) => say("step " + nearest(event).join(": "), event.clientX, event.clientY));
        mark.addEventListener("pointerleave", () => say(""));
        return mark;
      });
      this.events.replaceChildren(...marks);
      // The one of ours that lives longest, the first of several.
      const ours = episode.beliefs.length ? episode.beliefs.map((b) => b.seat) : episode.seats.flatMap((_, i) => (episode.controlled[i] ? [i] : []));
      const life = (seat) => Array.from({ length: episode.steps + 1 }, (_, t) => this.world.alive(seat, t)).filter(Boolean).length;
      this.select(ours.reduce((a, b) => (life(b) > life(a) ? b : a), ours[0] ?? 0));
    }

    // Battles need a key: what the marks in the world mean.
    showLegend() {
      const { kinds, units, seats, sight, reach } = this.episode;
      this.legend.replaceChildren();
      if (!this.arrays.shots) return;
      const count = (from, to) => `${to - from} ${units[from]}${to - from > 1 ? "s" : ""}`;
      const entries = [
        ["ally", `${count(0, seats.length)}, strangers dashed`],
        ["foe", `${count(seats.length, kinds.length)}, enemies`],
        ["fires", "shoots"],
        ["aims", "aims"],
        ["sees", `sight (${words(sight)})`],
        ["hits", `reach (${words(reach)})`],
        ["health", "health"],
        ...(this.arrays.shield ? [["shield", "shield"]] : []),
        ...(this.arrays.ghosts0 ? [["ghost", "thought to be there"]] : []),
      ];
      this.legend.append(...entries.map(([mark, meaning]) => element("span", {}, element("i", { class: mark, "aria-hidden": "true" }), meaning)));
    }

    badge(seat) {
      return element("span", { class: this.episode.controlled[seat] ? "badge" : "badge stranger" }, String(seat + 1));
    }

    select(seat) {
      if (!(seat in this.episode.seats)) return;
      this.selected = seat;
      [...this.seats.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === seat)));
      this.mind = this.episode.beliefs.findIndex((b) => b.seat === seat);
      this.showMind();
      this.paint(true);
    }

    // The right half: what the selected agent expects of the others.
    showMind() {
      const { episode, selected } = this;
      const name = `${selected + 1} (${episode.seats[selected]})`;
      this.hint = element("p", { class: "hint" });
      const heading = (title, hint) => {
        this.hint.textContent = hint;
        return [element("h3", {}, title), this.hint];
      };
      this.rows = [];
      this.surprise = this.lines = null;
      if (!episode.controlled[selected])
        return this.beliefs.replaceChildren(...heading(`Agent ${name} is a stranger`, "Nobody knows what it believes. Choose one of ours, drawn filled."));
      if (this.mind < 0)
        return this.beliefs.replaceChildren(...heading(`Agent ${name}`, "It has no model of its teammates: there are no beliefs to show."));
      const { teammates } = episode.beliefs[this.mind];
      const minds = element("div", { class: teammates.length > 4 ? "minds many" : "minds" });
      this.rows = teammates.map((seat) => {
        const bars = episode.actionNames.map(() => element("i"));
        bars.forEach((bar, a) => {
          bar.addEventListener("pointermove", (event) => say(`${episode.actionNames[a]}: ${bar.dataset.percent}`, event.clientX, event.clientY));
          bar.addEventListener("pointerleave", () => say(""));
        });
        const said = element("div", { class: "said" });
        minds.append(element("div", { class: "mind" }, this.badge(seat), element("div", { class: "bars", "aria-hidden": "true" }, ...bars), said));
        return { seat, bars, said };
      });
      const upright = episode.actionNames.some((n) => n.length > 6) || episode.actionNames.length > 6;
      const names = element("div", { class: upright ? "names upright" : "names", "aria-hidden": "true" });
      names.append(element("div", {}, ...episode.actionNames.map((n) => element("span", {}, n))));
      this.surprise = element("canvas", { role: "img", "aria-label": "How surprised the agent is, over time" });
      this.drag(this.surprise);
      const line = element("div", { class: "surprise" }, element("p", {}, "How surprised it is: −log of the chance it gave to what teammates did; thin: each of them; dashed: a mere guess"), this.surprise);
      this.beliefs.replaceChildren(...heading(`What agent ${name} expects`, this.explanation()), minds, names, line);
    }

    // Which actions a teammate may take is nothing a model is told, so no chance is taken away from the others.
    explanation() {
      const text = "The chance of each next action of its teammates; marked: the one taken.";
      return this.arrays.shots ? `${text} The model does not know which are possible.` : text;
    }

    chance(row, action, step) {
      const root = this.arrays[`chances${this.mind}`](row, action, step) / 255;
      return root * root;
    }
    surprisal(row, step) {
      const seat = this.rows[row].seat;
      if (!this.world.alive(seat, step) || !this.world.alive(this.selected, step)) return NaN;
      return -Math.log(Math.max(this.chance(row, this.arrays.actions(seat, step), step), 1e-5));
    }
    // From 0, no idea, to 1, certain.
    sureness(row, step) {
      const count = this.episode.actionNames.length;
      let entropy = 0;
      for (let a = 0; a < count; a++) {
        const p = this.chance(row, a, step);
        if (p > 0) entropy -= p * Math.log(p);
      }
      return clamp(1 - entropy / Math.log(Math.max(count, 2)), 0, 1);
    }

    advance(seconds) {
      this.time = Math.min(this.time + seconds * RATE * this.speed, this.episode.steps);
      if (this.time >= this.episode.steps) this.pause();
      this.paint();
    }
    toggle() {
      if (this.clock.playing) return this.pause();
      if (this.time >= this.episode.steps) this.time = 0;
      this.clock.start();
      setPressed(this.play, true);
    }
    pause() {
      this.clock.stop();
      setPressed(this.play, false);
      if (this.episode && this.time !== Math.floor(this.time)) this.go(Math.floor(this.time));
    }
    go(step) {
      this.time = clamp(step, 0, this.episode.steps);
      this.paint();
    }
    event(direction) {
      const steps = this.episode.events.map(([step]) => step).sort((a, b) => direction * (a - b));
      const next = steps.find((step) => direction * (step - Math.floor(this.time)) > 0);
      if (next !== undefined) this.go(next);
    }

    key(event) {
      if (!this.episode || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input")) return;
      const { key } = event;
      if (key === " " && event.target.matches("button")) return; // a button of its own
      if (key === " ") this.toggle();
      else if (key === "ArrowRight") this.step(1);
      else if (key === "ArrowLeft") this.step(-1);
      else if (key === "Home") this.go(0);
      else if (key === "End") this.go(this.episode.steps);
      else if (key === "[") this.event(-1);
      else if (key === "]") this.event(1);
      else if (/^[0-9]$/.test(key)) this.select((Number(key) + 9) % 10);
      else return;
      event.preventDefault();
    }
    step(by) {
      this.pause();
      this.go(Math.floor(this.time) + by);
    }

    paint(everything = false) {
      if (!this.episode) return;
      const step = Math.min(Math.floor(this.time), this.episode.steps);
      const shown = Math.min(step, this.episode.steps - 1); // after the last step nothing is expected
      const ghosts = [];
      const places = this.arrays[`ghosts${this.mind}`];
      if (places)
        this.rows.forEach(({ seat }, k) => {
          const [x, y] = [places(k, 0, shown), places(k, 1, shown)];
          if (!Number.isNaN(x + y) && this.world.alive(seat, step)) ghosts.push({ seat, x, y, sure: this.sureness(k, shown), unseen: this.world.unseen(this.selected, seat, step) });
        });
      this.world.draw(this.time, this.selected, ghosts);
      if (step === this.drawnStep && !everything) return;
      this.drawnStep = step;
      this.root.dataset.step = step;
      if (this.rows.length) this.hint.textContent = this.world.alive(this.selected, step) ? this.explanation() : "It has fallen: it sees nothing and expects nothing any more.";
      this.rows.forEach((row, k) => this.paintMind(row, k, shown, step));
      [...this.seats.children].forEach((button, i) => button.classList.toggle("gone", !this.world.alive(i, step)));
      this.paintCurve(step);
      if (this.surprise) this.paintSurprise(shown);
      const total = this.arrays.running(step);
      this.scrub.setAttribute("aria-valuenow", step);
      this.scrub.setAttribute("aria-valuetext", `step ${step} of ${this.episode.steps}, return ${words(total, 2)}`);
      const happened = this.episode.events.filter(([at]) => at === step).map(([, what]) => what);
      const fact = (name, value) => element("span", {}, `${name} `, element("b", {}, value));
      this.now.replaceChildren(fact("step", `${step} / ${this.episode.steps}`), fact("return so far", words(total, 2)));
      if (this.arrays.shots) {
        const alive = (kind) => this.episode.kinds.map((k, i) => k === kind && this.world.alive(i, step)).filter(Boolean).length;
        const all = (kind) => this.episode.kinds.filter((k) => k === kind).length;
        this.now.append(fact("allies", `${alive("ally")} / ${all("ally")}`), fact("enemies", `${alive("enemy")} / ${all("enemy")}`));
      }
      if (happened.length) this.now.append(element("b", {}, happened.join(", ")));
    }

    paintMind({ seat, bars, said }, k, shown, step) {
      const asked = this.world.alive(seat, step) && this.world.alive(this.selected, step);
      const taken = this.arrays.actions(seat, shown);
      const chances = bars.map((_, a) => (asked ? this.chance(k, a, shown) : 0));
      const most = Math.max(...chances);
      bars.forEach((bar, a) => {
        bar.style.setProperty("--p", chances[a].toFixed(3));
        bar.dataset.percent = asked ? `${Math.round(100 * chances[a])}\u00a0%` : "–";
        bar.classList.toggle("taken", asked && a === taken);
        bar.classList.toggle("most", asked && chances[a] === most);
      });
      if (!asked) return said.replaceChildren(this.world.alive(seat, step) ? "" : "has fallen");
      const percent = `${Math.round(100 * chances[taken])}\u00a0%`;
      const far = this.world.unseen(this.selected, seat, step);
      said.replaceChildren(element("b", {}, this.episode.actionNames[taken] ?? String(taken)), far ? `${percent}, ` : ` expected ${percent}`);
      if (far) said.append(element("em", {}, "out of sight"));
    }

    // A canvas of the size it has on the page.
    sheet(canvas) {
      const ratio = devicePixelRatio || 1;
      const [width, height] = [canvas.clientWidth, canvas.clientHeight];
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      return { context, width, height };
    }

    paintCurve(step) {
      const { context: c, width, height } = this.sheet(this.curve);
      if (!width) return;
      const { steps } = this.episode;
      const values = Array.from({ length: steps + 1 }, (_, t) => this.arrays.running(t));
      const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
      const at = (t) => [(t / steps) * width, height - 5 - ((values[t] - low) / (high - low || 1)) * (height - 10)];
      const trace = (end) => {
        c.beginPath();
        for (let t = 0; t <= end; t++) c.lineTo(...at(t));
      };
      const now = (step / steps) * width;
      c.fillStyle = palette.accent;
      c.globalAlpha = 0.1;
      c.fillRect(0, 0, now, height);
      c.globalAlpha = 1;
      c.lineWidth = 1.5;
      c.strokeStyle = palette.quiet;
      c.globalAlpha = 0.45;
      trace(steps);
      c.stroke();
      c.globalAlpha = 1;
      c.strokeStyle = palette.accent;
      c.lineWidth = 2;
      trace(step);
      c.stroke();
      c.fillStyle = palette.accent;
      c.fillRect(clamp(now - 1, 0, width - 2), 0, 2, height);
    }

    // Of each teammate and on average, over the whole episode.
    surprisals() {
      const { steps } = this.episode;
      const each = this.rows.map((_, k) => Array.from({ length: steps }, (_, t) => this.surprisal(k, t)));
      const mean = Array.from({ length: steps }, (_, t) => {
        const known = each.map((line) => line[t]).filter((v) => !Number.isNaN(v));
        return known.length ? known.reduce((a, b) => a + b) / known.length : NaN;
      });
      return { each, mean };
    }

    paintSurprise(step) {
      const { context: c, width, height } = this.sheet(this.surprise);
      if (!width) return;
      const { steps } = this.episode;
      this.lines ??= this.surprisals();
      const { each, mean } = this.lines;
      const ignorance = Math.log(this.episode.actionNames.length);
      const top = Math.max(ignorance * 1.2, ...mean.filter((v) => !Number.isNaN(v)));
      const at = (t, v) => [((t + 0.5) / steps) * width, height - 3 - (Math.min(v, top) / top) * (height - 8)];
      const trace = (line) => {
        c.beginPath();
        line.forEach((v, t) => Number.isNaN(v) || c.lineTo(...at(t, v)));
        c.stroke();
      };
      c.strokeStyle = palette.line;
      c.lineWidth = 1;
      c.strokeRect(-1, -1, width + 2, height);
      c.setLineDash([3, 3]);
      c.strokeStyle = palette.quiet;
      c.beginPath();
      c.moveTo(...at(-0.5, ignorance));
      c.lineTo(...at(steps, ignorance));
      c.stroke();
      c.setLineDash([]);
      c.globalAlpha = 0.28;
      each.forEach(trace);
      c.globalAlpha = 1;
      c.strokeStyle = palette.accent;
      c.lineWidth = 1.8;
      trace(mean);
      const [x] = at(step, 0);
      c.fillStyle = palette.ink;
      c.fillRect(x - 0.75, 0, 1.5, height);
      if (!Number.isNaN(mean[step])) {
        c.beginPath();
        c.arc(...at(step, mean[step]), 3.5, 0, 2 * Math.PI);
        c.fill();
      }
    }
  }

  showTheme();
  const { episodes } = data;
  if (episodes.length) {
    const player = new Player(document.getElementById("player"), episodes);
    const typical = episodes.find((e) => /typical|median/i.test(e.label) && e.beliefs.length) ?? episodes[0];
    setUpHero(document.getElementById("hero"), typical, (episode) => player.watch(episode));
  }
})();
