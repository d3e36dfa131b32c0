(() => {
  "use strict";

  const page = JSON.parse(document.getElementById("page-data").textContent);
  const shown = new Set(page.contestants);
  const axes = new Map();
  const drawn = new Map();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const announce = (text) => {
    document.getElementById("changes").textContent = text;
  };

  const LABELS = 110; // pixels that are left to the labels beside a drawing
  const GAP = 40; // between panels
  const LEAST = 150; // of a panel
  const LETTER = 6.5;

  // Figures: what the reader chose, put into a copy of the specification.

  const isShown = (row) => row.contestant === undefined || row.contestant === null || shown.has(row.contestant);

  const everyObject = (node, visit) => {
    if (Array.isArray(node)) {
      node.forEach((one) => everyObject(one, visit));
    } else if (node !== null && typeof node === "object") {
      visit(node);
      Object.entries(node).forEach(([key, one]) => key === "values" || everyObject(one, visit));
    }
  };

  const withAxis = (channel, choices, field) => {
    const title = choices[field];
    const axis = channel.axis && "title" in channel.axis ? { axis: { ...channel.axis, title } } : {};
    return { ...channel, field, title, ...axis };
  };

  const onlyShown = (scale) => {
    const kept = scale.domain.map((name) => !page.contestants.includes(name) || shown.has(name));
    const range = Array.isArray(scale.range) ? { range: scale.range.filter((_, place) => kept[place]) } : {};
    return { ...scale, domain: scale.domain.filter((_, place) => kept[place]), ...range };
  };

  // A title that is wider than its place goes on in a second line.
  const inLines = (title, width) => {
    const lines = [""];
    for (const word of title.split(" ")) {
      const line = lines[lines.length - 1];
      if (line && line.length + word.length > width / LETTER) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    }
    return lines.length > 1 ? lines : title;
  };

  const adapted = (figure, field, width) => {
    const spec = structuredClone(figure.spec);
    everyObject(spec, (node) => {
      if (node.data && Array.isArray(node.data.values)) {
        node.data.values = node.data.values.filter((row) => isShown(row) && (!field || typeof row[field] === "number"));
      }
      if (Array.isArray(node.domain)) Object.assign(node, onlyShown(node));
      const x = node.encoding && node.encoding.x;
      if (field && x && x.field in figure.axes) node.encoding.x = withAxis(x, figure.axes, field);
      if (x && !spec.facet && typeof node.encoding.x.title === "string") {
        node.encoding.x.title = inLines(node.encoding.x.title, 0.6 * width);
      }
    });
    return fitted(spec, width);
  };

  // Panels stand beside each other as far as there is room; anything else is as wide as its place.
  const fitted = (spec, width) => {
    if (!spec.facet) return { ...spec, width: "container" };
    const room = width - LABELS;
    if (spec.facet.row) return { ...spec, spec: { ...spec.spec, width: Math.max(LEAST, room) } };
    const head = spec.facet.column || spec.facet;
    const count = new Set(spec.data.values.map((row) => row[head.field])).size;
    const columns = Math.max(1, Math.min(count, spec.columns || count, Math.floor((room + GAP) / (LEAST + GAP))));
    const { width: wide, height: high } = spec.spec;
    const share = Math.floor((room - GAP * (columns - 1)) / columns);
    const size = wide === high ? { width: Math.min(wide, share), height: Math.min(high, share) } : { width: share };
    const facet = columns < count ? { facet: head, columns } : {};
    return { ...spec, ...facet, spec: { ...spec.spec, ...size } };
  };

  const OPTIONS = {
    renderer: "svg",
    actions: false,
    ast: true, // expressions are interpreted: the page's policy lets no text become code
    mode: "vega-lite",
    logLevel: 1, // errors only
    tooltip: { disableDefaultStyle: true },
  };

  const say = (place, text) => {
    const line = document.createElement("p");
    line.className = "message";
    line.textContent = text;
    place.replaceChildren(line);
  };

  const draw = async (name) => {
    const place = document.getElementById(`plot-${name}`);
    document.getElementById(`figure-${name}`).hidden = false;
    const spec = adapted(page.figures[name], axes.get(name), place.clientWidth);
    if (drawn.has(name)) drawn.get(name).finalize();
    drawn.delete(name);
    if (!spec.data.values.length) {
      document.getElementById(`figure-${name}`).hidden = true;
      place.replaceChildren();
      return;
    }
    try {
      const room = place.clientWidth;
      const stacked = room < 600 ? { layout: { top: { direction: "vertical", anchor: "start" } } } : {};
      const legend = { ...spec.config.legend, columns: Math.max(1, Math.floor(room / 180)), ...stacked };
      const config = { ...spec.config, legend, aria: false };
      drawn.set(name, await vegaEmbed(place, { ...spec, config }, OPTIONS));
    } catch (problem) {
      say(place, `This figure could not be drawn: ${problem.message}`);
      throw problem;
    }
  };

  // What is in sight is drawn first, and the page stays alive in between.
  let wave = 0;
  const drawAll = async () => {
    const own = ++wave;
    document.body.dataset.drawn = "no";
    const distance = (name) => {
      const { top, bottom } = document.getElementById(`plot-${name}`).getBoundingClientRect();
      return bottom < 0 ? -bottom : Math.max(0, top - innerHeight);
    };
    const names = Object.keys(page.figures).map((name) => [distance(name), name]).sort((a, b) => a[0] - b[0]);
    for (const [, name] of names) {
      await draw(name).catch((problem) => console.error(`${name}: ${problem.message}`));
      await new Promise((proceed) => setTimeout(proceed));
      if (own !== wave) return;
    }
    document.body.dataset.drawn = "yes";
  };

  // Tables.

  const numberOf = (cell) => (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value));

  const sortBy = (table, column, direction) => {
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const compare = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if (!x.classList.contains("number")) return sign * x.textContent.trim().localeCompare(y.textContent.trim());
      const [p, q] = [numberOf(x), numberOf(y)];
      if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q);
      return sign * (p - q);
    };
    body.append(...[...body.rows].sort(compare));
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
    });
  };

  const onSort = (event) => {
    const head = event.currentTarget.closest("th");
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const together = head.closest("[data-sorted-together]");
    const tables = together ? all("table", together) : [head.closest("table")];
    tables.forEach((table) => sortBy(table, head.cellIndex, direction));
    announce(`Sorted by ${event.currentTarget.textContent.trim()}, ${direction}.`);
  };

  const onBaseline = (event) => {
    const chosen = event.target.value;
    all("[data-baseline]").forEach((one) => (one.hidden = one.dataset.baseline !== chosen));
    announce(`Differences are now against ${chosen}.`);
  };

  // Contestants.

  const onContestant = (event) => {
    const { value, checked } = event.target;
    if (checked) shown.add(value);
    else shown.delete(value);
    all("[data-contestant]").forEach((one) => (one.hidden = !shown.has(one.dataset.contestant)));
    announce(`${value} is now ${checked ? "shown" : "hidden"}.`);
    drawAll();
  };

  const onAxis = (event) => {
    const { figure } = event.target.dataset;
    axes.set(figure, event.target.value);
    draw(figure).then(() => announce(`The x-axis is now: ${page.figures[figure].axes[event.target.value]}.`));
  };

  // Where the reader is.

  const follow = () => {
    const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
    const mark = () => {
      const passed = all("main > section").filter((one) => one.getBoundingClientRect().top < innerHeight / 3);
      const current = passed.length ? passed[passed.length - 1].id : links.keys().next().value;
      links.forEach((link, id) => {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
      const link = links.get(current);
      const list = link && link.closest("ol");
      if (list && list.scrollWidth > list.clientWidth) list.scrollLeft = link.offsetLeft - list.offsetLeft - 24;
    };
    addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
    mark();
  };

  // A browser may remember ticks and choices over a reload, of which the page as drawn knows nothing.
  all("form").forEach((form) => form.reset());
  all("input[name=contestant]").forEach((box) => box.addEventListener("change", onContestant));
  all("input[data-figure], select[data-figure]").forEach((choice) => {
    if (choice.matches("select, :checked")) axes.set(choice.dataset.figure, choice.value);
    choice.addEventListener("change", onAxis);
  });
  all("th button").forEach((button) => button.addEventListener("click", onSort));
  all("select[name=baseline]").forEach((choice) => choice.addEventListener("change", onBaseline));

  addEventListener("beforeprint", () => all("details.more").forEach((one) => (one.open = true)));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    drawAll();
  });

  follow();
  drawAll();
})();
