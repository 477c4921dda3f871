// The timeline of one step for all ranks, on a canvas: a strip that says what each moment was (compute, exposed
// communication, ..., idle), and below it a row for each stream (more where spans of a stream overlap). The wheel, the
// keyboard and the buttons zoom; the table below tells how the time in view was spent.
(function () {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const find = id => document.getElementById(id);
  const canvas = find("timeline-canvas"), tip = find("tip"), context = canvas.getContext("2d");
  const LEFT = 118, RIGHT = 8, AXIS = 26, STRIP = 9, LANE = 16, GAP = 9, MOST_ROWS = 4, SHORTEST_VIEW = 100;
  const PHASES = { forward: "#4477aa", recompute: "#66ccee", backward: "#228833", loss: "#332288", gather: "#ee7733",
                   reduce_scatter: "#aa3377", all_reduce: "#995533", optimizer: "#777777", data_wait: "#ccbb44",
                   copy_batch: "#009988" };
  const OTHERS = ["#8c6d31", "#7b4173", "#637939", "#843c39", "#3182bd"];
  const PARTS = { compute: ["#4477aa", "compute"], exposed_communication: ["#cc3311", "communication, exposed"],
                  exposed_copy: ["#009988", "copies, exposed"], data_wait: ["#ccbb44", "waiting for data"],
                  idle: ["#c8c8c8", "idle"] };
  const phaseName = phase => data.phases[phase] || "phase " + phase;
  const colour = phase => PHASES[data.phases[phase]] || OTHERS[phase % OTHERS.length];
  const pale = colour => { const [r, g, b] = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
                           return 0.3 * r + 0.59 * g + 0.11 * b > 150; };

  // Rows of the picture. A span that overlaps the one before it goes into the next row of its stream.
  const rows = [], twins = new Map();
  let height = AXIS;
  data.ranks.forEach(rank => {
    const seen = {};
    rows.push({ rank, strip: true, y: height, height: STRIP, spans: rank.parts });
    height += STRIP + 2;
    rank.streams.forEach(stream => {
      const lanes = [];
      stream.spans.forEach((span, index) => {
        let lane = lanes.findIndex(l => l.end <= span[0]);
        if (lane < 0) lane = lanes.length < MOST_ROWS ? lanes.push({ spans: [], end: 0 }) - 1 : MOST_ROWS - 1;
        lanes[lane].spans.push(span);
        lanes[lane].end = Math.max(lanes[lane].end, span[1]);
        span.flops = stream.flops ? stream.flops[index] : 0;
        span.row = rows.length + lane;
        // The same piece of work has the same name and the same number of occurrences on every rank.
        const name = [stream.name, span[2], span[3], span[4]].join(" ");
        seen[name] = (seen[name] || 0) + 1;
        span.twin = name + " " + seen[name];
        if (!twins.has(span.twin)) twins.set(span.twin, []);
        twins.get(span.twin).push(span);
      });
      lanes.forEach((lane, i) => {
        rows.push({ rank, stream: stream.name, label: i ? "" : stream.name, y: height, height: LANE,
                    spans: lane.spans });
        height += LANE;
      });
    });
    height += GAP;
  });

  const merged = spans => {   // disjoint intervals, in order
    const union = [];
    for (const [begin, end] of spans) {
      const last = union[union.length - 1];
      if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
      else union.push([begin, end]);
    }
    return union;
  };
  const inside = (intervals, low, high) => intervals.reduce(
    (sum, [begin, end]) => sum + Math.max(0, Math.min(end, high) - Math.max(begin, low)), 0);
  for (const rank of data.ranks) {
    const stream = rank.streams.find(s => s.name === "communication");
    rank.communication = merged(stream ? stream.spans : []);
    rank.exposed = rank.parts.filter(piece => data.parts[piece[2]] === "exposed_communication");
  }

  let from = 0, to = data.length, width = 0, hovered = null, drag = null, mark = null;
  const x = time => LEFT + (time - from) / (to - from) * (width - LEFT - RIGHT);
  const time = px => from + (px - LEFT) / (width - LEFT - RIGHT) * (to - from);
  const milliseconds = (ns, digits) => (ns / 1e6).toFixed(digits === undefined ? 4 : digits) + " ms";

  function ticks() {
    const least = (to - from) * 85 / (width - LEFT - RIGHT);
    let step = Math.pow(10, Math.floor(Math.log10(least)));
    step *= [1, 2, 5, 10].find(factor => factor * step >= least);
    const digits = Math.max(0, Math.ceil(6 - Math.log10(step) - 1e-9));
    const at = [];
    for (let i = Math.ceil(from / step); i * step <= to; ++i) at.push([i * step, (i * step / 1e6).toFixed(digits)]);
    return at;
  }

  function drawRow(row) {
    let open = null;   // neighbours too thin to tell apart are one rectangle
    const top = row.y + (row.strip ? 0 : 1), tall = row.height - (row.strip ? 0 : 2);
    const close = () => {
      if (!open) return;
      const fill = row.strip ? PARTS[data.parts[open.kind]][0] : colour(open.kind);
      context.fillStyle = fill;
      context.fillRect(open.a, top, Math.max(open.b - open.a, 0.7), tall);
      if (!row.strip && open.b - open.a > 3) {   // where it begins
        context.fillStyle = "rgba(255,255,255,0.55)";
        context.fillRect(open.a, top, 1, tall);
      }
      if (!row.strip && open.b - open.a > 34) label(open, fill, row);
      open = null;
    };
    for (const span of row.spans) {
      if (span[1] < from || span[0] > to) continue;
      const a = x(span[0]), b = x(span[1]);
      if (open && open.kind === span[2] && (b - a < 3 || open.b - open.a < 3) && a - open.b < 0.5) {
        open.b = Math.max(open.b, b);
        open.span = null;
        continue;
      }
      close();
      open = { a, b, kind: span[2], span };
    }
    close();
  }

  function label(rectangle, fill, row) {
    const a = Math.max(rectangle.a, LEFT) + 4, room = Math.min(rectangle.b, width - RIGHT) - a - 3;
    const name = phaseName(rectangle.kind), unit = rectangle.span ? data.units[rectangle.span[3]] : "";
    const text = [unit ? name + " " + unit : name, name].find(t => context.measureText(t).width <= room);
    if (!text) return;
    context.fillStyle = pale(fill) ? "#111" : "#fff";
    context.fillText(text, a, row.y + 12);
  }

  function outline(span, colour) {
    const row = rows[span.row], a = Math.max(x(span[0]), LEFT - 1), b = Math.min(x(span[1]), width - RIGHT + 1);
    if (b < LEFT || a > width - RIGHT) return;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(a, row.y + 1, Math.max(b - a, 2), row.height - 2);
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    canvas.style.height = height + "px";
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px sans-serif";
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    context.textAlign = "center";
    for (const [tick, text] of ticks()) {
      context.fillStyle = "#e2e2e2";
      context.fillRect(x(tick), AXIS - 6, 1, height);
      context.fillStyle = "#444";
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x(tick), LEFT + half), width - RIGHT - half), 14);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, AXIS - 2, width - LEFT - RIGHT, height);
    context.clip();
    context.textAlign = "left";
    rows.forEach(drawRow);
    if (hovered && hovered.twin) {
      for (const twin of twins.get(hovered.twin)) outline(twin, "#000");
      outline(hovered, "#ffd400");
    }
    if (mark) {
      context.fillStyle = "rgba(60,90,160,0.2)";
      context.fillRect(Math.min(mark[0], mark[1]), AXIS, Math.abs(mark[1] - mark[0]), height);
    }
    context.restore();
    context.fillStyle = "#444";
    context.textAlign = "left";
    context.fillText("ms in the step", 2, 14);
    for (const row of rows) {
      context.fillStyle = row.strip ? "#000" : "#555";
      context.textAlign = row.strip ? "left" : "right";
      if (row.strip) context.fillText("rank " + row.rank.rank, 2, row.y + 9);
      else context.fillText(row.label, LEFT - 6, row.y + 12);
    }
    tell();
  }

  // How the time in view was spent, rank by rank.
  function tell() {
    find("timeline-view").textContent = milliseconds(from) + " to " + milliseconds(to) + " (" +
      milliseconds(to - from) + " of " + milliseconds(data.length) + ")";
    const body = find("timeline-shares");
    body.textContent = "";
    const line = (cells, tag) => {
      const tr = body.appendChild(document.createElement("tr"));
      for (const cell of cells) tr.appendChild(document.createElement(tag)).textContent = cell;
    };
    line(["in view: ms (share)", ...data.parts.map(part => PARTS[part][1]), "communication, hidden"], "th");
    for (const rank of data.ranks) {
      const low = Math.max(from, rank.begin), high = Math.min(to, rank.end), whole = Math.max(high - low, 0);
      const cell = ns => (ns / 1e6).toFixed(3) + (whole ? " (" + (100 * ns / whole).toFixed(1) + " %)" : "");
      const sums = data.parts.map((_, part) => inside(rank.parts.filter(piece => piece[2] === part), low, high));
      const hidden = Math.max(0, inside(rank.communication, low, high) - inside(rank.exposed, low, high));
      line(["rank " + rank.rank, ...sums.map(cell), cell(hidden)], "td");
    }
  }

  function show(low, high) {   // a view lies within the step
    const length = Math.min(Math.max(high - low, SHORTEST_VIEW), data.length);
    from = Math.min(Math.max(low + (high - low - length) / 2, 0), data.length - length);
    to = from + length;
    draw();
  }
  const zoom = (factor, around) => show(around - (around - from) * factor, around + (to - around) * factor);
  const middle = () => (from + to) / 2;
  const move = share => show(from + share * (to - from), to + share * (to - from));
  const whole = () => show(0, data.length);

  function hit(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const row = rows.find(r => r.y <= py && py < r.y + r.height);
    if (!row || px < LEFT || px > width - RIGHT) return null;
    const slack = 2 * (to - from) / width, at = time(px), distance = span => Math.max(span[0] - at, at - span[1], 0);
    let best = null;
    for (const span of row.spans)
      if (distance(span) <= slack && (!best || distance(span) < distance(best) ||
          (distance(span) === distance(best) && span[1] - span[0] < best[1] - best[0]))) best = span;
    return best && { row, span: best };
  }

  function describe({ row, span }) {
    const [begin, end, kind, unit, micro, bytes] = span, length = end - begin;
    const when = milliseconds(length) + ", from " + milliseconds(begin) + " to " + milliseconds(end);
    if (row.strip) return PARTS[data.parts[kind]][1] + ", rank " + row.rank.rank + "\n" + when;
    const lines = [phaseName(kind) + (unit >= 0 ? "  " + (data.units[unit] || "unit " + unit) : ""),
                   "rank " + row.rank.rank + ", " + row.stream + ", micro-batch " + micro, when];
    if (bytes)
      lines.push((bytes / 1e6).toFixed(3) + " MB" + (length > 0 ? ", " + (bytes / length).toFixed(2) + " GB/s" : ""));
    if (span.flops)
      lines.push((span.flops / 1e12).toPrecision(4) + " TFLOP" +
                 (length > 0 ? ", " + (span.flops / length / 1e3).toPrecision(4) + " TFLOP/s" : ""));
    if (row.stream === "communication") {
      const exposed = inside(row.rank.exposed, begin, end);
      lines.push("hidden behind compute " + milliseconds(length - exposed) + ", exposed " + milliseconds(exposed));
    }
    const same = twins.get(span.twin);
    if (same.length > 1) {
      const begins = same.map(s => s[0]), ends = same.map(s => s[1]);
      const spread = times => milliseconds(Math.max(...times) - Math.min(...times));
      lines.push("on " + same.length + " ranks: begins within " + spread(begins) + ", ends within " + spread(ends));
    }
    return lines.join("\n");
  }

  function hover(event) {
    const found = drag ? null : hit(event), span = found ? found.span : null;
    tip.style.display = found ? "block" : "none";
    if (found) {
      tip.textContent = describe(found);
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
      const below = event.clientY + 18;
      const fits = below + tip.offsetHeight <= window.innerHeight;
      tip.style.top = (fits ? below : event.clientY - tip.offsetHeight - 8) + "px";
    }
    if (span !== hovered) {
      hovered = span;
      draw();
    }
  }

  const local = event => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 30 : 1;   // lines or pixels
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX * unit / width);
    else zoom(Math.exp(event.deltaY * unit * 0.002), time(Math.max(local(event), LEFT)));
  }, { passive: false });
  canvas.addEventListener("mousedown", event => {
    if (event.button !== 0) return;
    drag = { px: local(event), from, to };
    if (event.shiftKey) mark = [drag.px, drag.px];
  });
  window.addEventListener("mousemove", event => {
    if (!drag) return;
    if (mark) {
      mark[1] = local(event);
      draw();
    } else {
      const moved = (local(event) - drag.px) / (width - LEFT - RIGHT) * (drag.to - drag.from);
      show(drag.from - moved, drag.to - moved);
    }
  });
  window.addEventListener("mouseup", () => {
    const chosen = mark && Math.abs(mark[1] - mark[0]) > 3 ? mark.map(time).sort((a, b) => a - b) : null;
    drag = mark = null;
    if (chosen) show(...chosen);
  });
  canvas.addEventListener("mousemove", hover);
  canvas.addEventListener("mouseleave", event => hover(event));
  canvas.addEventListener("dblclick", whole);
  const closer = () => zoom(0.5, middle());
  const actions = { "+": closer, "=": closer, "-": () => zoom(2, middle()), ArrowLeft: () => move(-0.25),
                    ArrowRight: () => move(0.25), 0: whole, Home: whole };
  canvas.addEventListener("keydown", event => {
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  });
  document.querySelectorAll("#timeline button").forEach(
    button => button.addEventListener("click", () => actions[button.dataset.key]()));

  function legend(id, entries) {
    for (const [fill, name] of entries) {
      const item = find(id).appendChild(document.createElement("span"));
      item.appendChild(document.createElement("i")).style.background = fill;
      item.appendChild(document.createTextNode(name));
    }
  }
  const used = new Set(data.ranks.flatMap(rank => rank.streams.flatMap(stream => stream.spans.map(s => s[2]))));
  legend("legend", [...used].sort((a, b) => a - b).map(phase => [colour(phase), phaseName(phase)]));
  legend("parts-legend", data.parts.map(part => PARTS[part]));
  window.addEventListener("resize", draw);
  // For scripts that read the picture: where it has what.
  window.timeline = { data, rows, x, view: () => [from, to] };
  draw();
})();
