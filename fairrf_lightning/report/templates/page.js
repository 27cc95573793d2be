"use strict";
// Draws the plots in the colours of the page: light, dark, or light on paper.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const darker = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 700px)");
  const onDark = {
    "#1b2430": "#e8ebf0", "#5b6675": "#a3adbb", "#dde2e8": "#323a46", "#ffffff": "#1a2029",
    "#0072b2": "#56b4e9", "#56b4e9": "#2b7fb8", "#d55e00": "#f08a3c", "#009e73": "#2fc79b", "#cc79a7": "#e29cc3",
  };

  const recoloured = (value, key) => {
    if (Array.isArray(value)) return value.map((item) => recoloured(item, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, recoloured(item, name)]));
    }
    return /color$/.test(key) && value in onDark ? onDark[value] : value;
  };

  const draw = (dark, width) => {
    const card = dark ? "#232a34" : "#ffffff";
    for (const [name, plot] of Object.entries(plots)) {
      const { data, layout } = dark ? recoloured(plot, "") : structuredClone(plot);
      layout.font.family = getComputedStyle(document.body).fontFamily;
      layout.hoverlabel = { ...layout.hoverlabel, bgcolor: card, bordercolor: layout.xaxis.gridcolor };
      layout.hoverlabel.font = { ...layout.hoverlabel.font, color: layout.font.color };
      if (width) layout.width = width;
      else layout.autosize = true;
      Plotly.react(name, data, layout, {
        responsive: !width, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
        modeBarButtons: [["toImage"]],
      });
    }
  };

  const redraw = () => draw(darker.matches, 0);
  redraw();
  darker.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((part) => { part.open = true; });
    draw(false, 640);
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((part) => { part.open = false; });
    redraw();
  });
})();
