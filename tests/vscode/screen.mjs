// What a person sees and does in VS Code.  A wait is for what is expected to be seen.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

/** The machine may be busy. */
const LONG = 60_000;
/** How long the language server may take, which shows that the extensions are up. */
const UP = 5_000;
/** How long a key may do nothing, before it is pressed again. */
const UNHEARD = 5_000;
/** The same for a key that does another thing when it is heard twice, such as F5. */
const UNHEARD_ONCE = 20_000;

export const BREAKPOINT =
  ".margin-view-overlays [class*=codicon-debug-breakpoint], .glyph-margin-widgets [class*=codicon-debug-breakpoint]";
export const STOPPED = ".debug-top-stack-frame-line";
/** What is seen of a session that has been asked for, even while its model is read. */
export const BEGUN = [
  ".debug-toolbar:visible",
  '.part.sidebar:has(.title-label:has-text("Run and Debug")) .monaco-progress-container.active:visible',
].join(", ");

/** The pattern for the text of an editor line, which has non-breaking blanks. */
function withAnyBlanks(pattern) {
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

  gone(selector) {
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

  /** The texts of what is found, with plain blanks, each on one line. */
  async texts(locator) {
    return (await locator.allInnerTexts()).map((each) => each.replace(/\s+/g, " ").trim());
  }

  /** The lines of the editor that are on the screen, with what stands at their ends. */
  lines() {
    return this.texts(this.page.locator(".editor-instance .view-line"));
  }

  line(pattern) {
    const found = async () => (await this.lines()).find((each) => pattern.test(each));
    return this.until(found, `a line like ${pattern}`);
  }

  /** Of a view beside the editor, such as `debug-call-stack`, the rows. */
  rows(view, options = {}) {
    return this.page.locator(`.${view} .monaco-list-row`, options);
  }

  row(view, pattern) {
    const found = async () => (await this.texts(this.rows(view))).find((each) => pattern.test(each));
    return this.until(found, `a row of ${view} like ${pattern}`);
  }

  /** F5, until a notification with this text is there. */
  async startsInVain(text) {
    const toast = `.notification-toast:has-text("${text}")`;
    await this.pressUntil("F5", `${BEGUN}, ${toast}`, "that a session begins");
    return this.held(text);
  }

  /** A notification, with the pointer over it: VS Code hides any other after some seconds. */
  async held(text) {
    const toast = this.toast(text);
    await toast.waitFor({ timeout: LONG });
    // A dialog may be in front of it.
    await toast.hover({ force: true });
    return toast;
  }

  toast(text) {
    return this.page.locator(".notification-toast", { hasText: text }).first();
  }

  /** Taken when two looks one after the other show the same. */
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
    // Without it VS Code may drop a key: it is pressed again later.
    await this.page.locator(".codelens-decoration").first().waitFor({ timeout: UP }).catch(() => undefined);
  }

  /** Opens a model, whose listing is shown.  A window that has just opened may not know yet that it is none of its texts. */
  async openModel(name, listing) {
    const shown = `.tab[data-resource-name="${listing}"]`;
    const asText = `.tab[data-resource-name="${name}"].active`;
    const action = async () => {
      if (await this.page.locator(asText).count() && await this.page.locator('.statusbar-item:has-text("ONNX model")').count()) {
        await this.page.keyboard.press("Control+w");
        await this.gone(asText);
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

  pressUntil(key, seen, what) {
    return this.again(() => this.page.keyboard.press(key), seen, what, UNHEARD_ONCE);
  }

  /** Presses a key that steps until a line of the editor is like `pattern`. */
  stepUntil(key, pattern) {
    const line = this.page.locator(".editor-instance .view-line", { hasText: withAnyBlanks(pattern) });
    return this.again(() => this.page.keyboard.press(key), line, `a line like ${pattern}`, UNHEARD_ONCE);
  }

  /** Acts again as long as nothing is seen of it: VS Code drops what the extension host is not up for.
   * `seen` is a selector or a locator. */
  async again(action, seen, what, patience = UNHEARD) {
    const sight = (typeof seen === "string" ? this.page.locator(seen) : seen).first();
    let found = (await sight.count()) > 0;
    for (let tries = 0; tries < 6 && !found; tries++) {
      await action();
      found = await sight.waitFor({ timeout: patience }).then(() => true, () => false);
    }
    assert.ok(found, `never seen: ${what}`);
  }

  /** F5 on the editor at hand, until the session stops. */
  async start() {
    await this.pressUntil("F5", BEGUN, "that a session begins");
    await this.see(STOPPED);
    // On a busy machine a key that was pressed again is heard after all.
    if (await this.page.locator('.monaco-dialog-box:has-text("is already running")').count()) {
      await this.page.keyboard.press("Escape");
    }
  }

  /** Opens a file, and begins to debug it with the cursor in the line with this text. */
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

  async continueTo(text) {
    await this.page.keyboard.press("F5");
    await this.stoppedAt(text);
  }

  /** The arrow is in the line with this text. */
  async stoppedAt(text) {
    await this.until(async () => (await this.currentLine())?.includes(text), `the arrow at ${text}`);
  }

  /** The text of the line that the program stands at. */
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
    await this.gone(".debug-toolbar");
  }

  /** A line of the debug console. */
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

  /** An answer in the debug console. */
  said(pattern) {
    const rows = this.page.locator(".repl .monaco-list-row:not(:has(.input))");
    const found = async () => (await this.texts(rows)).find((each) => pattern.test(each));
    return this.until(found, `the debug console says ${pattern}`);
  }

  /** Runs a command of the palette by its title. */
  async command(title) {
    const row = `.quick-input-widget:visible .quick-input-list .monaco-list-row:has-text(${JSON.stringify(title)})`;
    const palette = this.page.locator(".quick-input-widget:visible");
    const type = async () => {
      if (await palette.count()) {
        // The list is as of its opening, when a command may not have been enabled yet.
        await this.page.keyboard.press("Escape");
        await this.gone(".quick-input-widget");
      }
      await this.page.keyboard.press("F1");
      // A stop of the program takes the focus, and closes the palette.
      await this.page.locator(".quick-input-widget input").fill(`>${title}`, { timeout: UNHEARD }).catch(() => undefined);
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
