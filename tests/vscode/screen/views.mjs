// The views in the debug side bar: timeline, statistics, graph map.

import assert from "node:assert/strict";

/** A view of the side bar, by its title: its rows, and its buttons. */
function pane(page, title) {
  return page.locator(".pane", { has: page.locator(`.pane-header[aria-label^="${title}"]`) }).first();
}

/** Opens a view of the debug side bar if it is folded, and folds the others, so that it has room. */
export async function only(page, title) {
  await page.locator(".debug-viewlet .pane-header, .pane-header").first().waitFor();
  for (const header of await page.locator(".sidebar .pane-header").all()) {
    const open = (await header.getAttribute("aria-expanded")) === "true";
    const wanted = ((await header.getAttribute("aria-label")) ?? "").startsWith(title);
    if (open !== wanted) {
      await header.click();
    }
  }
}

/** The page of a view, once it shows what `selector` says. */
export async function pageOf(page, screen, selector) {
  return screen.until(async () => {
    for (const frame of page.frames()) {
      if (await frame.locator(selector).first().isVisible().catch(() => false)) {
        return frame;
      }
    }
  }, `a page with ${selector}`);
}

const LOOKS = {
  dark: "Default Dark Modern",
  light: "Default Light Modern",
  contrast: "Default High Contrast",
  "contrast-light": "Default High Contrast Light",
};

/** Pictures in each theme, and as large as at 200 %. */
async function pictures(page, screen, settings, name) {
  for (const [look, theme] of Object.entries(LOOKS)) {
    settings({ "workbench.colorTheme": theme });
    const kind = { dark: "vs-dark", light: "vs", contrast: "hc-black", "contrast-light": "hc-light" }[look];
    await screen.see(`.monaco-workbench.${kind}`);
    await screen.picture(`${name}-${look}`);
  }
  settings({ "workbench.colorTheme": LOOKS.dark });
  await screen.see(".monaco-workbench.vs-dark");
  const size = page.viewportSize();
  await page.setViewportSize({ width: size.width / 2, height: size.height / 2 });
  await screen.picture(`${name}-twice-as-large`);
  await page.setViewportSize(size);
}

const place = (page, line) => page.locator(".statusbar-item", { hasText: `Ln ${line}, Col` });

export const tests = {
  async "the timeline shows marks, edits and branches, and a click goes there"({ page, screen, open, settings }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await only(page, "Timeline");
    const timeline = pane(page, "Timeline");
    const rows = async () => (await timeline.locator(".monaco-list-row").allInnerTexts()).map((each) => each.replace(/\s+/g, " "));
    const row = (text) => timeline.locator(".monaco-list-row", { hasText: text }).first();
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 10/.test(each)), "where it stands");

    await page.keyboard.press("F10");
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 11/.test(each)), "the next place");
    await row("Now").hover();
    await row("Now").locator('[aria-label^="Mark This Moment"]').click();
    await screen.see(".quick-input-widget input");
    await page.keyboard.type("after the layer");
    await page.keyboard.press("Enter");
    await row("after the layer").waitFor();

    await page.keyboard.press("F10");
    await screen.stoppedAt("while @sharpen");
    await page.locator(".repl-input-wrapper .monaco-editor").click();
    await page.keyboard.type("set %h = 0");
    await page.keyboard.press("Enter");
    await row("%h set").waitFor();
    // The branch that was left stays as it was opened.
    await screen.until(async () => (await rows()).some((each) => /^Left here/.test(each)), "where it was left");
    await pictures(page, screen, settings, "timeline");
    await row("after the layer").click();
    await screen.stoppedAt("%scores");
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 11/.test(each)), "where it went");
    await screen.stop();
    assert.ok(!(await timeline.isVisible()), "the view is there without a session");
  },

  async "the statistics show the abnormal first, and a click goes to the line"({ page, screen, open, settings }) {
    await open();
    await screen.debugTo("nan_softmax.nnc", "%sum: ");
    await only(page, "Statistics");
    const frame = await pageOf(page, screen, "li.rank0");
    const rows = frame.locator("li");
    assert.match(await rows.nth(0).innerText(), /%terms.*5 NaN/s);
    assert.match(await rows.nth(1).innerText(), /%logq.*5 -Inf/s);
    assert.equal(await frame.locator("li.rank0").count(), 2);
    await pictures(page, screen, settings, "statistics");
    await rows.nth(1).locator(".go").click();
    await place(page, 21).waitFor();
    await rows.nth(0).locator(".go").focus();
    await page.keyboard.press("ArrowDown");
    assert.match(await frame.evaluate(() => document.activeElement.getAttribute("aria-label")), /^%logq, @entropy/);
    await screen.stop();
  },

  async "in a loop the statistics have a line over its iterations"({ page, screen, open }) {
    await open();
    await screen.debugTo("refine_loop.nnc", "%better: ");
    await only(page, "Statistics");
    const frame = await pageOf(page, screen, "li .go");
    const visits = async () => {
      const labels = (sparks) => sparks.map((each) => each.getAttribute("aria-label"));
      const [said] = await frame.locator('li:has([aria-label^="%sum"]) .spark').evaluateAll(labels);
      return Number(said ? /over (\d+) visits/.exec(said)[1] : 1);
    };
    const before = await visits();
    await page.keyboard.press("F5");
    await screen.until(async () => (await visits()) === before + 1, "one iteration more");
    await screen.picture("statistics-loop");
    await page.locator('.debug-toolbar [aria-label^="Reverse"]').click();
    await screen.until(async () => (await visits()) === before, "one iteration less");
    await screen.stop();
  },

  async "the graph map lights the current op and what carries NaN, and opens layers"({ page, screen, open, settings }) {
    await open();
    await screen.debugTo("nan_softmax.nnc", "%sum: ");
    await only(page, "Graph Map");
    const frame = await pageOf(page, screen, ".node.current");
    assert.match(await frame.locator(".node.current").getAttribute("aria-label"), /^ReduceSum, gives %sum, line 23/);
    assert.match(await frame.locator(".node.bad").last().getAttribute("aria-label"), /^Mul, gives %terms.*holds NaN/);
    assert.ok(await frame.locator(".edge.bad").count());
    await frame.locator('.node[aria-label^="@normalize"] .opens').click();
    await frame.locator('.node[aria-label^="Softmax"]').waitFor();
    await pictures(page, screen, settings, "map");
    await frame.locator('.button[aria-label^="@normalize"]').focus();
    await page.keyboard.press("Enter");
    await frame.locator('.node[aria-label^="@normalize"]').waitFor();
    await frame.locator('.node[aria-label^="Log,"]').click();
    await place(page, 21).waitFor();
    await page.locator('.debug-toolbar [aria-label^="Step Over"]').click();
    await frame.locator('.node.current[aria-label^="Neg,"]').waitFor();
    await screen.stop();
  },

  async "a loop in the graph map has its iteration, open and closed"({ page, screen, open }) {
    await open();
    await screen.debugTo("refine_loop.nnc", "%better: ");
    await only(page, "Graph Map");
    const frame = await pageOf(page, screen, ".node.current");
    assert.ok(await frame.locator(".edge.carried").count());
    const [title, before] = /@newton #(\d+)/.exec(await frame.locator(".cluster.loop").textContent());
    await page.keyboard.press("F5");
    const after = title.replace(before, Number(before) + 1);
    await frame.locator(".cluster.loop", { hasText: after }).waitFor();
    await screen.picture("map-loop");
    await frame.locator('.button[aria-label^="@newton"]').click();
    await frame.locator(`.node.loop.current[aria-label^="${after}"]`).waitFor();
    await screen.stop();
  },
};
