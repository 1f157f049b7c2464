// Actions and visible state of a VS Code window.  Each wait is for an expected visible state.

import assert from "node:assert/strict";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";

/** Timeout in ms, enough for a busy machine. */
const LONG = 60_000;
/** ms to wait for what may never come, such as the lenses of a language server that has started. */
const UP = 5_000;
/** ms without an effect after which a key is pressed again. */
const RETRY_AFTER = 5_000;
/** The same for a key or a click with another effect when it is repeated, such as F5. */
export const RETRY_ONCE_AFTER = 20_000;

export const BREAKPOINT =
  ".margin-view-overlays [class*=codicon-debug-breakpoint], .glyph-margin-widgets [class*=codicon-debug-breakpoint]";
export const STOPPED = ".debug-top-stack-frame-line";
/** Visible signs of a starting session, even while its model is read. */
export const STARTING = [
  ".debug-toolbar:visible",
  '.part.sidebar:has(.title-label:has-text("Run and Debug")) .monaco-progress-container.active:visible',
].join(", ");

/** Returns the pattern for the text of an editor line, which has non-breaking spaces. */
function withAnySpaces(pattern) {
  return new RegExp(pattern.source.replaceAll(" ", "\\s"), pattern.flags);
}

export class Screen {
  constructor(page, pictures) {
    this.page = page;
    this.pictures = pictures;
  }

  see(selector, options = {}) {
    return this.page.waitForSelector(selector, { timeout: LONG, ...options });
  }

  expectHidden(selector) {
    return this.see(selector, { state: "hidden" });
  }

  async until(found, what, limit = LONG) {
    for (const end = Date.now() + limit; Date.now() < end; ) {
      const value = await found();
      if (value) {
        return value;
      }
      await this.page.waitForTimeout(50);
    }
    throw new Error(`never seen: ${what}`);
  }

  /** Returns the texts of a locator, with plain spaces, each on one line. */
  async texts(locator) {
    return (await locator.allInnerTexts()).map((each) => each.replace(/\s+/g, " ").trim());
  }

  /** Returns the visible lines of the editor, with the inline values at their ends. */
  lines() {
    return this.texts(this.page.locator(".editor-instance .view-line"));
  }

  line(pattern) {
    const found = async () => (await this.lines()).find((each) => pattern.test(each));
    return this.until(found, `a line like ${pattern}`);
  }

  /** Returns the rows of a view, such as `debug-call-stack`. */
  rows(view, options = {}) {
    return this.page.locator(`.${view} .monaco-list-row`, options);
  }

  /** Scrolls a view to its last rows: VS Code renders only those that are visible. */
  async scrollToEnd(view) {
    await this.rows(view).first().hover();
    await this.page.mouse.wheel(0, 2000);
  }

  row(view, pattern) {
    const found = async () => (await this.texts(this.rows(view))).find((each) => pattern.test(each));
    return this.until(found, `a row of ${view} like ${pattern}`);
  }

  /** Presses F5 until a notification with this text is shown. */
  async expectStartFailure(text) {
    const toast = `.notification-toast:has-text("${text}")`;
    await this.pressUntil("F5", `${STARTING}, ${toast}`, "the start of a session");
    return this.holdToast(text);
  }

  /** Waits for a notification and puts the pointer over it: VS Code hides any other after some seconds. */
  async holdToast(text) {
    const toast = this.toast(text);
    await toast.waitFor({ timeout: LONG });
    // A dialog may be in front of it.
    await toast.hover({ force: true });
    return toast;
  }

  toast(text) {
    return this.page.locator(".notification-toast", { hasText: text }).first();
  }

  /** Saves a screenshot once two in a row are equal. */
  async picture(name) {
    const file = path.join(this.pictures, `${name}.png`);
    let last = Buffer.alloc(0);
    for (const end = Date.now() + 10_000; Date.now() < end; ) {
      const seen = await this.page.screenshot({ path: file, caret: "hide" });
      if (seen.equals(last)) {
        return;
      }
      last = seen;
    }
  }

  async openFile(name, tab = name) {
    await this.doubleClickFile(name);
    await this.see(`.tab[data-resource-name="${tab}"]`);
    await this.see('.statusbar-item:has-text("NNC graph")');
    // Without a lens VS Code may drop a key, which is then pressed again later.
    await this.page.locator(".codelens-decoration").first().waitFor({ timeout: UP }).catch(() => undefined);
  }

  /** Opens the listing of a model.  A new window may first open the model as a text. */
  async openModel(name, listing) {
    const shown = `.tab[data-resource-name="${listing}"]`;
    const asText = `.tab[data-resource-name="${name}"].active`;
    const action = async () => {
      if (await this.page.locator(asText).count() && await this.page.locator('.statusbar-item:has-text("ONNX model")').count()) {
        await this.page.keyboard.press("Control+w");
        await this.expectHidden(asText);
      }
      await this.doubleClickFile(name);
    };
    await this.again(action, shown, `the listing of ${name}`);
    await this.see('.statusbar-item:has-text("NNC graph")');
  }

  async doubleClickFile(name) {
    const row = this.page.locator(".explorer-folders-view .monaco-list-row", { hasText: name }).first();
    await row.waitFor({ timeout: LONG });
    await row.dblclick();
  }

  /** Puts the cursor into the first line with this text. */
  async click(text) {
    await this.page.locator(".view-line", { hasText: text }).first().click();
  }

  async breakHere() {
    await this.pressUntil("F9", BREAKPOINT, "a breakpoint in the margin");
  }

  /** Opens a file, and sets a breakpoint in the line with this text. */
  async breakIn(name, text) {
    const tab = this.page.locator(`.tab[data-resource-name="${name}"]`);
    if (await tab.count()) {
      await tab.click();
    } else {
      await this.doubleClickFile(name);
      await tab.waitFor();
    }
    await this.click(text);
    const before = await this.page.locator(BREAKPOINT).count();
    await this.pressUntil("F9", `${BREAKPOINT} >> nth=${before}`, `a breakpoint at ${text}`);
  }

  pressUntil(key, seen, what) {
    return this.again(() => this.page.keyboard.press(key), seen, what, RETRY_ONCE_AFTER);
  }

  /** Presses a key that steps until a line of the editor matches `pattern`. */
  stepUntil(key, pattern) {
    const line = this.page.locator(".editor-instance .view-line", { hasText: withAnySpaces(pattern) });
    return this.again(() => this.page.keyboard.press(key), line, `a line like ${pattern}`, RETRY_ONCE_AFTER);
  }

  /** Repeats an action until it has a visible effect: VS Code drops input before the extension host has started.
   * `seen` is a selector or a locator of the effect. */
  async again(action, seen, what, patience = RETRY_AFTER) {
    const sight = (typeof seen === "string" ? this.page.locator(seen) : seen).first();
    // VS Code keeps the input box of its last question, hidden.
    let found = await sight.isVisible();
    for (let tries = 0; tries < 6 && !found; tries++) {
      await action();
      found = await sight.waitFor({ timeout: patience }).then(() => true, () => false);
    }
    assert.ok(found, `never seen: ${what}`);
  }

  /** Presses F5 in the current editor, and waits until the session stops. */
  async start() {
    await this.pressUntil("F5", STARTING, "the start of a session");
    await this.see(STOPPED);
    // On a busy machine both presses of a repeated key may take effect.
    if (await this.page.locator('.monaco-dialog-box:has-text("is already running")').count()) {
      await this.page.keyboard.press("Escape");
    }
  }

  /** Opens a file, and starts to debug it with the cursor in the line with this text. */
  async debug(name, text) {
    await this.openFile(name);
    await this.click(text);
    await this.start();
  }

  /** The same, stopped at a breakpoint in that line. */
  async debugTo(name, text) {
    await this.openFile(name);
    await this.debugLine(text);
  }

  async debugLine(text) {
    await this.click(text);
    await this.breakHere();
    await this.start();
    await this.continueTo(text);
  }

  /** Presses F5, again if the arrow stays in its line: VS Code may drop the key right after a stop. */
  async continueTo(text) {
    // The line with the arrow may not be drawn yet, or be in another editor.
    const before = await this.until(() => this.currentLine(), "the arrow", UP).catch(() => undefined);
    await this.page.keyboard.press("F5");
    if (!before?.includes(text)) {
      const moved = async () => ![undefined, before].includes(await this.currentLine());
      const seen = await this.until(moved, "another line", RETRY_ONCE_AFTER).catch(() => false);
      // While the program runs, there is no arrow.
      if (!seen && (await this.currentLine()) === before) {
        await this.page.keyboard.press("F5");
      }
    }
    await this.stoppedAt(text);
  }

  /** Waits until the arrow is in the line with this text. */
  async stoppedAt(text) {
    await this.until(async () => (await this.currentLine())?.includes(text), `the arrow at ${text}`);
  }

  /** Returns the text of the line with the arrow. */
  currentLine() {
    return this.page.evaluate(
      ([stopped]) => {
        const mark = document.querySelector(stopped);
        const top = mark?.getBoundingClientRect().top;
        const line = [...document.querySelectorAll(".editor-instance .view-line")].find(
          (each) => Math.abs(each.getBoundingClientRect().top - top) < 3,
        );
        return line?.innerText.replaceAll("\u00a0", " ");
      },
      [STOPPED],
    );
  }

  async stop() {
    await this.page.keyboard.press("Shift+F5");
    await this.expectHidden(".debug-toolbar");
  }

  /** Types a line into the debug console. */
  async enter(line) {
    const input = this.page.locator(".repl-input-wrapper .monaco-editor");
    if (!(await input.isVisible())) {
      await this.page.keyboard.press("Control+Shift+Y");
    }
    await input.click();
    await this.page.keyboard.type(line);
    // Completion must not take the key.
    await this.page.keyboard.press("Escape");
    await this.page.keyboard.press("Enter");
  }

  /** Waits for an answer in the debug console. */
  expectAnswer(pattern) {
    const rows = this.page.locator(".repl .monaco-list-row:not(:has(.input))");
    const found = async () => (await this.texts(rows)).find((each) => pattern.test(each));
    return this.until(found, `an answer like ${pattern} in the debug console`);
  }

  /** Runs a command of the palette by its title. */
  async command(title) {
    const row = `.quick-input-widget:visible .quick-input-list .monaco-list-row:has-text(${JSON.stringify(title)})`;
    const palette = this.page.locator(".quick-input-widget:visible");
    const type = async () => {
      if (await palette.count()) {
        // The list does not change after its opening, when a command may not have been enabled yet.
        await this.page.keyboard.press("Escape");
        await this.expectHidden(".quick-input-widget");
      }
      await this.page.keyboard.press("F1");
      // A stop of the program takes the focus, and closes the palette.
      await this.page.locator(".quick-input-widget input").fill(`>${title}`, { timeout: RETRY_AFTER }).catch(() => undefined);
    };
    await this.again(type, row, `${title} in the palette`);
    await this.page.locator(row).first().click();
  }
}


/** Writes the launch.json of a workspace, with one configuration. */
export function launches(workspace, configuration) {
  const configurations = [{ type: "nncdbg", name: "the one", ...configuration }];
  const file = path.join(workspace, ".vscode", "launch.json");
  fs.writeFileSync(file, JSON.stringify({ version: "0.2.0", configurations }));
}

/** Returns a port of this machine on which no program listens. */
export function freePort() {
  return new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
