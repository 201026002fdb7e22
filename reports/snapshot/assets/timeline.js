"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const canvas = byId("plot"), map = byId("map"), tip = byId("tip");
  const PALETTE = {
    parameters: "#4e79a7", gradients: "#e15759", "optimizer state": "#f28e2b", activations: "#59a14f",
    logits: "#b07aa1", workspace: "#a0785a", inputs: "#76b7b2", unknown: "#a9a9a9",
  };
  const SPARE = ["#d4a72c", "#ff9da7", "#6b7fd7", "#3aa3a0", "#c95f9b", "#8f9b3f"];
  const NARROWEST = 4;  // events or microseconds on screen at least

  // What is measured, in words.

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  function unitOf(bytes) {
    let unit = 0;
    for (let value = Math.abs(bytes); value >= 1024 && unit + 1 < UNITS.length; value /= 1024) ++unit;
    return unit;
  }
  function size(bytes, unit = unitOf(bytes)) {
    const value = bytes / 1024 ** unit;
    const digits = unit === 0 || Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
    return value.toFixed(digits) + " " + UNITS[unit];
  }
  const whole = (number) => number.toLocaleString("en");
  function duration(us) {
    if (Math.abs(us) < 1000) return us + " µs";
    if (Math.abs(us) < 1e6) return (us / 1e3).toFixed(us < 1e5 ? 2 : 1) + " ms";
    return (us / 1e6).toFixed(us < 1e8 ? 2 : 1) + " s";
  }

  // One device's events as arrays: what was allocated in each category after every event.

  class Device {
    constructor(raw) {
      Object.assign(this, raw);
      const n = raw.delta.length;
      this.n = n;
      this.time = new Float64Array(n);
      for (let i = 0, t = 0; i < n; ++i) this.time[i] = t += raw.delta[i];
      const count = raw.begin.length;
      this.count = count;
      let begin = 0;
      this.begin = Int32Array.from(raw.begin, (step) => (begin += step));
      this.end = Int32Array.from(raw.end, (length, i) => (length < 0 ? n : this.begin[i] + length));
      // Levels: index 0 is before the first event, i + 1 after event i.
      this.levels = raw.categories.map(() => new Float64Array(n + 1));
      this.total = new Float64Array(n + 1);
      for (let i = 0; i < count; ++i) {
        const level = this.levels[raw.category[i]];
        level[this.begin[i] + 1] += raw.size[i];
        if (this.end[i] < n) level[this.end[i] + 1] -= raw.size[i];
      }
      for (const level of this.levels) {
        for (let i = 1; i <= n; ++i) level[i] += level[i - 1];
        for (let i = 0; i <= n; ++i) this.total[i] += level[i];
      }
      this.reserved = new Float64Array(n + 1);
      for (let p = 0, value = 0, i = 0; i <= n; ++i) {
        if (p < raw.reservedAt.length && raw.reservedAt[p] === i) value = raw.reservedTo[p++];
        this.reserved[i] = value;
      }
      let next = 0;
      this.color = raw.categories.map((name) => PALETTE[name] || SPARE[next++ % SPARE.length]);
      this.free = new Int32Array(n).fill(-1);  // by event: the allocation that it gives back
      for (let i = 0; i < count; ++i) if (this.end[i] < n) this.free[this.end[i]] = i;
    }
    duration() { return this.n ? Math.max(this.time[this.n - 1], 1) : 1; }
    /// Level index at a moment: how many events have happened.
    at(x, byTime) {
      if (!byTime) return Math.min(this.n, Math.max(0, Math.floor(x)));
      let low = 0, high = this.n;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.time[middle] <= x) low = middle + 1; else high = middle;
      }
      return low;
    }
    live(level) {
      const found = [];
      for (let i = 0; i < this.count; ++i) if (this.begin[i] < level && this.end[i] >= level) found.push(i);
      return found;
    }
  }

  const state = {
    device: null, byTime: false, reserved: true, from: 0, to: 1, pinned: null, over: null, picked: -1, columns: null,
  };
  const devices = data.devices.map(() => null);
  const extent = () => (state.byTime ? state.device.duration() : state.device.n + 1);

  // Drawing

  let colors = {};
  function readColors() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "text", "quiet", "line", "grid", "reserved", "cursor", "accent", "halo", "panel"]) {
      colors[name] = style.getPropertyValue("--" + name).trim();
    }
  }
  function fit(target) {
    const scale = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(target.clientWidth * scale));
    const height = Math.max(1, Math.round(target.clientHeight * scale));
    if (target.width !== width || target.height !== height) [target.width, target.height] = [width, height];
    const context = target.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, target.clientWidth, target.clientHeight);
    return context;
  }

  /// For each pixel column the level index to show: of the moments in it the one with the most allocated, so that no
  /// peak is ever lost to the zoom.
  function columnsOf(from, to, width) {
    const device = state.device;
    const columns = new Int32Array(width);
    let low = device.at(from, state.byTime);
    for (let x = 0; x < width; ++x) {
      const end = from + ((to - from) * (x + 1)) / width;
      let high = low;
      if (state.byTime) while (high < device.n && device.time[high] < end) ++high;
      else high = Math.min(device.n, Math.max(low, Math.ceil(end) - 1));
      let best = low;
      for (let i = low + 1; i <= high; ++i) if (device.total[i] > device.total[best]) best = i;
      columns[x] = best;
      low = high;
      if (!state.byTime) low = Math.max(low, Math.min(device.n, Math.floor(end)));
    }
    return columns;
  }

  function area(context, columns, x0, yOf, below, above, fill) {
    context.fillStyle = fill;
    context.beginPath();
    const width = columns.length;
    for (let x = 0; x < width; ++x) {
      const y = yOf(above[x]);
      context.lineTo(x0 + x, y);
      context.lineTo(x0 + x + 1, y);
    }
    for (let x = width - 1; x >= 0; --x) {
      const y = yOf(below[x]);
      context.lineTo(x0 + x + 1, y);
      context.lineTo(x0 + x, y);
    }
    context.fill();
  }

  function stacked(context, columns, x0, yOf) {
    const device = state.device;
    let below = new Float64Array(columns.length);
    device.levels.forEach((level, c) => {
      const above = below.map((base, x) => base + level[columns[x]]);
      area(context, columns, x0, yOf, below, above, device.color[c]);
      below = above;
    });
  }

  function ticks(largest, count) {
    const unit = unitOf(largest), scale = 1024 ** unit;
    const rough = largest / scale / count;
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough) || 1;
    const found = [];
    for (let value = 0; value * scale <= largest; value += step) found.push(value * scale);
    return { unit, found, digits: step % 1 ? (step * 10) % 1 ? 2 : 1 : 0 };
  }

  const ROW = 17;
  let box = null;  // of the plot's area, in CSS pixels
  function draw() {
    if (!state.device) return;  // a snapshot of nothing
    const device = state.device, context = fit(canvas);
    const width = canvas.clientWidth, height = canvas.clientHeight;
    context.font = "12px system-ui, sans-serif";
    const rows = Math.min(3, device.phases.reduce((most, phase) => Math.max(most, phase[3] + 1), 0));
    const left = 74, right = 10, top = 12, bottom = 24 + rows * ROW;
    box = { left, top, width: Math.max(20, Math.floor(width - left - right)), height: Math.max(20, height - top - bottom) };
    const columns = (state.columns = columnsOf(state.from, state.to, box.width));
    let largest = 1;
    for (const i of columns) {
      largest = Math.max(largest, device.total[i], state.reserved ? device.reserved[i] : 0);
    }
    largest *= 1.04;
    box.largest = largest;
    const yOf = (bytes) => top + box.height * (1 - bytes / largest);

    context.textBaseline = "middle";
    context.textAlign = "right";
    const scale = ticks(largest, Math.max(2, Math.floor(box.height / 60)));
    for (const value of scale.found) {
      const y = Math.round(yOf(value)) + 0.5;
      context.strokeStyle = colors.grid;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + box.width, y);
      context.stroke();
      context.fillStyle = colors.quiet;
      context.fillText((value / 1024 ** scale.unit).toFixed(scale.digits) + " " + UNITS[scale.unit], left - 7, y);
    }
    stacked(context, columns, left, yOf);
    if (state.reserved) {
      context.strokeStyle = colors.reserved;
      context.setLineDash([5, 4]);
      context.lineWidth = 1.5;
      context.beginPath();
      columns.forEach((i, x) => {
        context.lineTo(left + x, yOf(device.reserved[i]));
        context.lineTo(left + x + 1, yOf(device.reserved[i]));
      });
      context.stroke();
      context.setLineDash([]);
      context.lineWidth = 1;
    }
    drawPicked(context, yOf);
    drawPhases(context, rows);
    drawAxis(context);
    drawMarks(context, yOf);
    drawMap();
  }

  const xOf = (value) => box.left + ((value - state.from) / (state.to - state.from)) * box.width;
  const valueAt = (x) => state.from + ((x - box.left) / box.width) * (state.to - state.from);
  /// The axis's value where level `i` begins.
  const valueOf = (i) => (state.byTime ? (i === 0 ? 0 : state.device.time[i - 1]) : i);

  function drawAxis(context) {
    const y = box.top + box.height;
    context.strokeStyle = colors.line;
    context.beginPath();
    context.moveTo(box.left, y + 0.5);
    context.lineTo(box.left + box.width, y + 0.5);
    context.stroke();
    const span = state.to - state.from, rough = span / Math.max(2, box.width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(state.byTime ? 1 : 1, [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough));
    context.fillStyle = colors.quiet;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let value = Math.ceil(state.from / step) * step; value <= state.to; value += step) {
      const x = xOf(value);
      const text = state.byTime ? duration(value) : whole(value);
      const half = context.measureText(text).width / 2;
      if (x - half < box.left - 30 || x + half > box.left + box.width + 10) continue;
      context.fillText(text, x, canvas.clientHeight - 16);
    }
    context.textAlign = "right";
    context.fillText(state.byTime ? "time" : "events", box.left - 14, canvas.clientHeight - 16);
  }

  function drawPhases(context, rows) {
    const device = state.device, y = box.top + box.height + 4;
    context.textBaseline = "middle";
    context.textAlign = "left";
    let last = new Array(rows).fill(-1);
    for (const [name, begin, end, depth, beginUs, endUs] of device.phases) {
      if (depth >= rows) continue;
      // What event i does is drawn behind i + 1 events.
      const a = Math.max(box.left, xOf(state.byTime ? beginUs : begin + 1));
      const b = Math.min(box.left + box.width, xOf(state.byTime ? endUs : end + 1));
      if (b <= a || b - last[depth] < 0.5) continue;  // hundreds of layers within a pixel are one
      last[depth] = b;
      const row = y + depth * ROW;
      context.fillStyle = colors.panel;
      context.fillRect(a, row, Math.max(1, b - a), ROW - 3);
      context.strokeStyle = colors.line;
      context.strokeRect(a + 0.5, row + 0.5, Math.max(1, b - a - 1), ROW - 4);
      const text = device.names[name], room = b - a - 8;
      if (room < 14) continue;
      context.fillStyle = colors.text;
      context.save();
      context.beginPath();
      context.rect(a, row, b - a - 3, ROW);
      context.clip();
      context.fillText(text, a + 4, row + (ROW - 3) / 2 + 0.5);
      context.restore();
    }
  }

  function label(context, text, x, y) {
    context.font = "600 12px system-ui, sans-serif";
    const half = context.measureText(text).width / 2;
    x = Math.min(box.left + box.width - half - 4, Math.max(box.left + half + 4, x));
    context.textAlign = "center";
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = colors.halo;
    context.strokeText(text, x, y);
    context.fillStyle = colors.text;
    context.fillText(text, x, y);
    context.lineWidth = 1;
    context.font = "12px system-ui, sans-serif";
  }

  function drawMarks(context, yOf) {
    const device = state.device;
    context.textBaseline = "middle";
    const line = (value, color) => {
      const x = xOf(value);
      if (x < box.left - 1 || x > box.left + box.width + 1) return null;
      context.strokeStyle = color;
      context.beginPath();
      context.moveTo(x, box.top);
      context.lineTo(x, box.top + box.height);
      context.stroke();
      return x;
    };
    for (const event of device.ooms) {
      const x = line(valueOf(event + 1), "#d1242f");
      if (x !== null) label(context, "out of memory", x, box.top + 10);
    }
    if (state.pinned !== null && state.pinned !== device.peak) line(valueOf(state.pinned) + (state.byTime ? 0 : 0.5), colors.accent);
    const peak = valueOf(device.peak) + (state.byTime ? 0 : 0.5);
    if (peak >= state.from && peak <= state.to && device.total[device.peak] > 0) {
      const x = xOf(peak), y = yOf(device.total[device.peak]);
      context.fillStyle = colors.cursor;
      context.strokeStyle = colors.halo;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x, y, 4.5, 0, 7);
      context.fill();
      context.stroke();
      context.lineWidth = 1;
      label(context, "peak " + size(device.total[device.peak]), x, Math.max(box.top + 8, y - 15));
    }
    if (state.over !== null) {
      context.globalAlpha = 0.6;
      line(state.over, colors.cursor);
      context.globalAlpha = 1;
    }
  }

  /// The band of one allocation through its whole life: what lies below it only ever goes away, so one walk suffices.
  function drawPicked(context, yOf) {
    const device = state.device, which = state.picked;
    if (which < 0) return;
    const category = device.category[which], columns = state.columns;
    let below = 0;
    for (let i = 0; i < which; ++i) {
      if (device.category[i] === category && device.begin[i] <= device.begin[which] && device.end[i] > device.begin[which]) {
        below += device.size[i];
      }
    }
    context.fillStyle = colors.cursor;
    context.globalAlpha = 0.45;
    let level = device.begin[which] + 1;
    for (let x = 0; x < columns.length; ++x) {
      const at = columns[x];
      if (at <= device.begin[which] || at > device.end[which]) continue;
      for (; level <= at; ++level) {
        const gone = level >= 1 ? device.free[level - 1] : -1;
        if (gone >= 0 && gone < which && device.category[gone] === category && level - 1 > device.begin[which]) {
          below -= device.size[gone];
        }
      }
      let base = below;
      for (let c = 0; c < category; ++c) base += device.levels[c][at];
      const y = yOf(base + device.size[which]);
      context.fillRect(box.left + x, y, 1, Math.max(1, yOf(base) - y));
    }
    context.globalAlpha = 1;
  }

  function drawMap() {
    const context = fit(map), width = Math.floor(map.clientWidth - box.left - 10), height = map.clientHeight;
    const device = state.device;
    const columns = columnsOf(0, extent(), Math.max(10, width));
    let largest = 1;
    for (const i of columns) largest = Math.max(largest, device.total[i]);
    stacked(context, columns, box.left, (bytes) => height - 2 - (height - 6) * (bytes / largest));
    const a = box.left + (state.from / extent()) * width, b = box.left + (state.to / extent()) * width;
    context.fillStyle = colors.ground;
    context.globalAlpha = 0.7;
    context.fillRect(box.left, 0, a - box.left, height);
    context.fillRect(b, 0, box.left + width - b, height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.strokeRect(a, 1, Math.max(2, b - a), height - 2);
    context.lineWidth = 1;
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  // Zoom and pan

  function show(from, to) {
    const all = extent(), span = Math.min(all, Math.max(Math.min(NARROWEST, all), to - from));
    const center = (from + to) / 2;
    state.from = Math.min(all - span, Math.max(0, center - span / 2));
    state.to = state.from + span;
    byId("out").disabled = byId("all").disabled = span >= all;
    redraw();
  }
  function zoom(factor, around = (state.from + state.to) / 2) {
    const span = Math.min(extent(), Math.max(NARROWEST, (state.to - state.from) * factor));
    const share = (around - state.from) / (state.to - state.from);
    show(around - span * share, around + span * (1 - share));
  }
  const pan = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));

  // What lies under the pointer

  function allocationAt(level, bytes) {
    const device = state.device;
    let base = 0;
    for (let c = 0; c < device.levels.length; ++c) {
      const here = device.levels[c][level];
      if (bytes < base + here) {
        for (let i = 0; i < device.count; ++i) {
          if (device.category[i] !== c || device.begin[i] >= level || device.end[i] < level) continue;
          base += device.size[i];
          if (bytes < base) return i;
        }
        return -1;
      }
      base += here;
    }
    return -1;
  }

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function describe(which) {
    const device = state.device, parts = [];
    const head = element("div");
    const swatch = element("span", undefined, "swatch");
    swatch.style.background = device.color[device.category[which]];
    head.append(swatch, element("b", size(device.size[which])), " " + device.categories[device.category[which]]);
    parts.push(head);
    const stack = device.stacks[device.stack[which]];
    if (stack.layer) parts.push(element("span", stack.layer, "quiet"));
    const begin = device.begin[which], end = device.end[which];
    let life = begin < 0 ? "there before the trace" : "from event " + whole(begin);
    life += end >= device.n ? ", still there at the end" : " to " + whole(end);
    if (begin >= 0 && end < device.n) life += ", " + duration(device.time[end] - device.time[begin]);
    parts.push(element("span", life, "quiet"));
    if (stack.frames.length) {
      const list = element("ol");
      for (const line of stack.frames.slice(0, 10)) list.append(element("li", device.lines[line]));
      parts.push(list);
      if (stack.frames.length > 10) parts.push(element("span", stack.frames.length - 10 + " more frames", "quiet"));
    } else {
      parts.push(element("span", "no frames", "quiet"));
    }
    return parts;
  }

  function phasesAt(level) {
    const event = Math.max(0, level - 1), device = state.device;
    return device.phases.filter(([, begin, end]) => begin <= event && event < end).map(([name]) => device.names[name]);
  }

  function point(x, y) {
    const device = state.device;
    const inside = x >= box.left && x < box.left + box.width && y >= box.top && y <= box.top + box.height;
    if (!inside) return leave();
    state.over = valueAt(x);
    const level = state.columns[Math.min(box.width - 1, Math.floor(x - box.left))];
    const bytes = box.largest * (1 - (y - box.top) / box.height);
    state.picked = allocationAt(level, bytes);
    const parts = [];
    const where = level === 0 ? "before the first event" : "after event " + whole(level - 1);
    parts.push(element("span", where + (level ? ", " + duration(device.time[level - 1]) : ""), "quiet"));
    parts.push(element("div", size(device.total[level]) + " allocated, " + size(device.reserved[level]) + " reserved"));
    const phases = phasesAt(level);
    if (phases.length) parts.push(element("span", phases.join(" › "), "quiet"));
    if (state.picked >= 0) parts.push(element("hr"), ...describe(state.picked));
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const room = canvas.clientWidth;
    const wide = tip.offsetWidth;
    tip.style.left = Math.max(0, x + 16 + wide <= room ? x + 16 : Math.min(x - 16 - wide, room - wide)) + "px";
    tip.style.top = Math.max(0, Math.min(y + 12, canvas.clientHeight + 40 - tip.offsetHeight)) + "px";
    redraw();
    return level;
  }
  function leave() {
    if (state.over === null && state.picked < 0) return null;
    state.over = null;
    state.picked = -1;
    tip.hidden = true;
    redraw();
    return null;
  }

  // Tables

  function cells(row, ...texts) {
    for (const [text, className] of texts) row.append(element("td", text, className));
    return row;
  }
  function showTables() {
    const device = state.device, level = state.pinned === null ? device.peak : state.pinned;
    const atPeak = level === device.peak;
    byId("moment").textContent = atPeak ? "At the peak" : level === 0 ? "Before the first event" : "After event " + whole(level - 1);
    byId("back").hidden = atPeak;
    const phases = phasesAt(level);
    byId("when").textContent = size(device.total[level]) + " allocated, " + size(device.reserved[level]) + " reserved" +
      (level ? "; event " + whole(level - 1) + ", " + duration(device.time[level - 1]) : "") +
      (phases.length ? "; " + phases.join(" › ") : "");
    const live = device.live(level);
    const blocks = device.categories.map(() => 0);
    for (const i of live) ++blocks[device.category[i]];
    const order = device.categories.map((_, c) => c).filter((c) => device.levels[c][level] > 0);
    order.sort((a, b) => device.levels[b][level] - device.levels[a][level]);
    byId("categories").replaceChildren(...order.map((c) => {
      const row = element("tr"), name = element("td", undefined, "name"), swatch = element("span", undefined, "swatch");
      swatch.style.background = device.color[c];
      name.append(swatch, device.categories[c]);
      row.append(name);
      const share = (100 * device.levels[c][level]) / device.total[level];
      return cells(row, [size(device.levels[c][level]), "number"], [share.toFixed(1) + "%", "number"], [whole(blocks[c]), "number"]);
    }));
    live.sort((a, b) => device.size[b] - device.size[a] || a - b);
    byId("blocks").replaceChildren(...live.slice(0, 12).map((i) => {
      const row = element("tr", undefined, "pick"), stack = device.stacks[device.stack[i]];
      const name = element("td", undefined, "name"), swatch = element("span", undefined, "swatch");
      swatch.style.background = device.color[device.category[i]];
      name.append(swatch, stack.operation);
      if (stack.source) name.append(element("div", stack.source, "quiet"));
      row.tabIndex = 0;
      const pick = () => {
        state.picked = i;
        byId("blocks").querySelectorAll(".picked").forEach((other) => other.classList.remove("picked"));
        row.classList.add("picked");
        redraw();
      };
      row.addEventListener("click", pick);
      row.addEventListener("focus", pick);
      row.append(name);
      return cells(row, [size(device.size[i]), "number"]);
    }));
    byId("rest").textContent = live.length > 12 ? "The largest 12 of " + whole(live.length) + " blocks." : "";
  }

  function choose(index) {
    const device = (state.device = devices[index] || (devices[index] = new Device(data.devices[index])));
    state.pinned = null;
    state.picked = -1;
    const used = device.categories.map((_, c) => c).filter((c) => device.levels[c].some((bytes) => bytes > 0));
    byId("legend").replaceChildren(...used.map((c) => {
      const item = element("li"), swatch = element("span", undefined, "swatch");
      swatch.style.background = device.color[c];
      item.append(swatch, device.categories[c]);
      return item;
    }));
    const item = element("li"), dash = element("span", undefined, "swatch dash");
    item.append(dash, "reserved");
    byId("legend").append(item);
    const end = device.n;
    const facts = [
      ["Peak", size(device.total[device.peak])], ["Most reserved", size(device.reserved.reduce((a, b) => Math.max(a, b), 0))],
      ["At the beginning", size(device.total[0])], ["At the end", size(device.total[end])],
      ["Events", whole(device.n)], ["Duration", duration(device.n ? device.time[device.n - 1] : 0)],
    ];
    byId("facts").replaceChildren(...facts.map(([name, value]) => {
      const fact = element("li", name + " ");
      fact.append(element("b", value));
      return fact;
    }));
    canvas.setAttribute("aria-label", "Bytes allocated over " + whole(device.n) + " events, stacked by category. Peak " +
      size(device.total[device.peak]) + ".");
    show(0, extent());
    showTables();
  }

  // Wiring

  const press = (id, on) => byId(id).setAttribute("aria-pressed", String(on));
  function axis(byTime) {
    if (byTime === state.byTime) return;
    // The same stretch stays in view.
    const device = state.device, from = device.at(state.from, state.byTime), to = device.at(state.to, state.byTime);
    const everything = state.to - state.from >= extent();
    state.byTime = byTime;
    press("events", !byTime);
    press("time", byTime);
    everything ? show(0, extent()) : show(valueOf(from), valueOf(to));
  }
  byId("events").addEventListener("click", () => axis(false));
  byId("time").addEventListener("click", () => axis(true));
  byId("reserved").addEventListener("click", () => { press("reserved", (state.reserved = !state.reserved)); redraw(); });
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));
  byId("all").addEventListener("click", () => show(0, extent()));
  byId("to-peak").addEventListener("click", () => {
    const peak = valueOf(state.device.peak), span = extent() / 12;
    show(peak - span / 2, peak + span / 2);
  });
  byId("back").addEventListener("click", () => { state.pinned = null; showTables(); redraw(); });

  const pointers = new Map();
  let moved = 0, pinch = 0;
  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x] = place(event);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan(event.deltaX / box.width);
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), valueAt(Math.max(box.left, x)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, place(event));
    moved = 0;
    pinch = 0;
    try { canvas.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone again */ }
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event), before = pointers.get(event.pointerId);
    if (!before) return void point(...now);
    pointers.set(event.pointerId, now);
    if (pointers.size === 2) {
      const [[x1], [x2]] = [...pointers.values()];
      const distance = Math.max(8, Math.abs(x1 - x2));
      if (pinch) zoom(pinch / distance, valueAt((x1 + x2) / 2));
      pinch = distance;
      moved = 99;
      return;
    }
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (moved > 4) {
      leave();
      pan((before[0] - now[0]) / box.width);
    }
  });
  const release = (event) => {
    const was = pointers.get(event.pointerId);
    pointers.delete(event.pointerId);
    if (!was || moved > 4 || event.type !== "pointerup") return;
    const level = point(...was);  // a click keeps the moment
    if (level === null) return;
    state.pinned = level;
    showTables();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => { if (!pointers.has(event.pointerId)) leave(); });
  canvas.addEventListener("dblclick", (event) => zoom(0.25, valueAt(place(event)[0])));
  canvas.addEventListener("keydown", (event) => {
    const actions = {
      ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.6), "=": () => zoom(0.6),
      "-": () => zoom(1 / 0.6), 0: () => show(0, extent()), Escape: () => leave(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });

  let dragging = false;
  const drag = (event) => {
    const x = event.clientX - map.getBoundingClientRect().left - box.left;
    const center = (x / (map.clientWidth - box.left - 10)) * extent(), half = (state.to - state.from) / 2;
    show(center - half, center + half);
  };
  map.addEventListener("pointerdown", (event) => {
    dragging = true;
    try { map.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone again */ }
    drag(event);
  });
  map.addEventListener("pointermove", (event) => { if (dragging) drag(event); });
  for (const name of ["pointerup", "pointercancel"]) map.addEventListener(name, () => { dragging = false; });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redraw(); });
  new ResizeObserver(redraw).observe(canvas);

  readColors();
  const picker = byId("device");
  data.devices.forEach((device, index) => {
    const option = element("option", "device " + device.device);
    option.value = index;
    picker.append(option);
  });
  picker.hidden = data.devices.length < 2;
  picker.addEventListener("change", () => choose(Number(picker.value)));
  if (data.devices.length) {
    choose(data.devices.reduce((most, device, i) => (device.delta.length > data.devices[most].delta.length ? i : most), 0));
    picker.value = String(data.devices.indexOf(data.devices.find((device) => device.device === state.device.device)));
  } else {
    byId("when").textContent = "This snapshot has no segments and no events.";
    for (const control of document.querySelectorAll(".tools button")) control.disabled = true;
    for (const target of [canvas, map]) target.hidden = true;
  }
  // For tests and the curious.
  window.timeline = { state, show, zoom, size, draw, point };
})();
