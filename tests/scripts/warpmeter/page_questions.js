// What report_browser_test.py asks of every page it looks at. The value of this text is an object of answers.
(() => {
  "use strict";
  const plots = [...document.querySelectorAll("svg.plot")];

  // Plots that have no extent, or marks that have none or lie outside their plot's frame.
  const bad_plots = plots.filter(plot => {
    const box = plot.getBoundingClientRect(), view = plot.viewBox.baseVal;
    if (box.width < 100 || box.height < 80) return true;
    return [...plot.querySelectorAll(".mark, .cross")].some(mark => {
      const extent = mark.getBBox(), at = mark.transform.baseVal.consolidate().matrix;
      const inside = at.e >= 0 && at.e <= view.width && at.f >= 0 && at.f <= view.height;
      return !(extent.width > 0 && extent.height > 0 && inside);
    });
  }).length;

  // Level texts of a plot that lie on each other or are cut off, in words for people.
  const bad_texts = plots.flatMap(plot => {
    const frame = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll("text")].filter(text => !text.hasAttribute("transform")).map(text => {
      const box = text.getBoundingClientRect(), shrink = box.height * 0.18;
      const words = text.firstChild.textContent;
      return {words, left: box.left, right: box.right, top: box.top + shrink, bottom: box.bottom - shrink};
    });
    const cut = texts.filter(a => a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
      || a.bottom > frame.bottom + 1).map(a => a.words + " is cut off");
    const on_another = texts.flatMap((a, i) => texts.slice(i + 1).filter(b => a.left < b.right && b.left < a.right
      && a.top < b.bottom && b.top < a.bottom).map(b => a.words + " on " + b.words));
    return [...cut, ...on_another].map(words => plot.querySelector("title").textContent + ": " + words);
  });

  // The least contrast of visible text with the ground behind it, as WCAG counts it, and where it is.
  const numbers = colour => (colour.match(/[\d.]+/g) || []).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = rgb => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => sum + share * linear(rgb[i] / 255), 0);
  const ground_of = node => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let contrast = [99, ""];
  for (const node of document.querySelectorAll("body *")) {
    const tag = node.tagName.toUpperCase();
    const has_words = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!has_words || !node.getClientRects().length || ["TITLE", "DESC", "SCRIPT", "STYLE"].includes(tag)) continue;
    const style = getComputedStyle(node);
    const ink = luminance(numbers(tag === "TEXT" ? style.fill : style.color)), paper = luminance(ground_of(node));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < contrast[0]) {
      contrast = [ratio, tag + "." + node.getAttribute("class") + ": " + node.textContent.slice(0, 40)];
    }
  }

  const scrolled = document.scrollingElement.scrollWidth;
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  const pixels = text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a;
  return {
    scrolled,
    scrolled_opened: document.scrollingElement.scrollWidth,
    inner: innerWidth,
    plots: plots.length,
    marks: document.querySelectorAll("svg.plot .mark").length,
    bad_plots,
    bad_texts,
    contrast,
    smallest: Math.min(...[...document.querySelectorAll("svg.plot text")].map(pixels)),
    ground: getComputedStyle(document.body).backgroundColor,
  };
})()
