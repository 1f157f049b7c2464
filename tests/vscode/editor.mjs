// A separate VS Code for one run: code-server on a free port, with its own data folder, in Chromium.

import { spawn } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

/** The folder of `node_modules/` with code-server and playwright-core. */
export const INSTALLED = process.env.NNCDBG_EDITOR ?? import.meta.dirname;

const { chromium } = createRequire(path.join(INSTALLED, "package.json"))("playwright-core");
const CODE_SERVER = path.join(INSTALLED, "node_modules", "code-server", "out", "node", "entry.js");

const BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];

function codeServer({ data, extensions, env }, ...more) {
  const folders = ["--user-data-dir", data, "--extensions-dir", extensions, "--config", "/dev/null"];
  const options = { stdio: ["ignore", "pipe", "pipe"], detached: true, env: { ...process.env, ...env } };
  const child = spawn(process.execPath, [CODE_SERVER, ...folders, ...more], options);
  child.output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (text) => (child.output += text));
  }
  return child;
}

function writeSettings(data, settings) {
  // VS Code in a browser reads machine settings and user settings from separate files.
  for (const name of ["User", "Machine"]) {
    fs.mkdirSync(path.join(data, name), { recursive: true });
    fs.writeFileSync(path.join(data, name, "settings.json"), JSON.stringify(settings));
  }
}

async function install(place, vsix) {
  const child = codeServer(place, "--install-extension", vsix);
  const code = await new Promise((resolve) => child.on("exit", resolve));
  if (code !== 0) {
    throw new Error(`${vsix} cannot be installed:\n${child.output}`);
  }
}

/** The address of a code-server on a free port: it prints it when it listens. */
async function addressOf(child) {
  for (const end = Date.now() + 120_000; Date.now() < end && child.exitCode === null; ) {
    const listening = /listening on http:\/\/(127\.0\.0\.1:\d+)/.exec(child.output);
    if (listening) {
      return listening[1];
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`code-server does not listen:\n${child.output}`);
}

/** Starts server and browser, calls `use({ page, open, forget, host, settings })`, and ends both.  `env`: further variables. */
export async function withEditor({ scratch, settings, vsix, env }, use) {
  const data = path.join(scratch, "data");
  const extensions = path.join(scratch, "extensions");
  const quiet = {
    "workbench.startupEditor": "none",
    "security.workspace.trust.enabled": false,
    // The lines that stick to the top cover a line that a test points at after it was scrolled there.
    "editor.stickyScroll.enabled": false,
  };
  const own = { data, extensions, env };
  const write = (more) => writeSettings(data, { ...quiet, ...settings, ...more });
  write({});
  if (vsix) {
    await install(own, vsix);
  }
  const place = ["--bind-addr", "127.0.0.1:0", "--auth", "none", "--disable-telemetry", "--disable-update-check"];
  const server = codeServer(own, ...place, "--disable-getting-started-override");
  let browser;
  const end = () => process.kill(-server.pid, "SIGTERM");
  // When this process is terminated, it ends the server; Chromium ends with its pipe.
  process.once("SIGTERM", () => {
    end();
    process.exit(1);
  });
  try {
    const host = await addressOf(server);
    const options = { executablePath: process.env.NNCDBG_CHROMIUM, headless: true, args: BROWSER };
    browser = await chromium.launchPersistentContext(path.join(scratch, "browser"), {
      ...options,
      viewport: { width: 1400, height: 900 },
    });
    // The machine may be busy.
    browser.setDefaultTimeout(60_000);
    const page = browser.pages()[0];
    const open = async (folder, payload = []) => {
      const query = new URLSearchParams({ folder, payload: JSON.stringify(payload) });
      await page.goto(`http://${host}/?${query}`, { waitUntil: "domcontentloaded", timeout: 60_000 });
      await page.waitForSelector(".monaco-workbench .part.editor", { timeout: 60_000 });
    };
    /** Closes the window, and deletes VS Code's state in the browser: layout and recent commands. */
    const forget = async () => {
      await page.goto("about:blank");
      const client = await browser.newCDPSession(page);
      await client.send("Storage.clearDataForOrigin", { origin: `http://${host}`, storageTypes: "indexeddb,local_storage" });
      await client.detach();
    };
    return await use({ page, open, forget, host, settings: write });
  } finally {
    await browser?.close();
    end();
  }
}
