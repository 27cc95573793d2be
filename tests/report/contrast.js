// Returns the texts whose contrast with what is behind them is below 4.5 to 1 (WCAG AA).
() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !parent.checkVisibility() || parent.closest("script, title, style, .skip")) continue;
    const style = getComputedStyle(parent);
    const colour = parse(parent.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(colour), light(ground(parent.closest("svg")?.parentElement ?? parent))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return { seen, poor };
}
