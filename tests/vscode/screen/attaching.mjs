// Attaching to a Python program, which continues after the editor disconnects.

import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { launches } from "../screen.mjs";

export const tests = {
  async "attach to a program, step, disconnect, and the program continues"({ page, screen, workspace, open, python }) {
    const program = spawn(python, [path.join(workspace, "listening.py")], { cwd: workspace, stdio: ["pipe", "pipe", "inherit"] });
    let output = "";
    program.stdout.on("data", (data) => (output += data));
    try {
      const port = Number(await screen.until(() => /^\d+(?=\n)/.exec(output)?.[0], "the port of the program"));
      launches(workspace, { request: "attach", connect: { host: "127.0.0.1", port } });
      await open();
      await screen.openFile("first_steps.nnc");
      await screen.click("%scores");
      await screen.breakHere();
      await screen.start();
      await screen.stoppedAt("%scores");
      await page.keyboard.press("F10");
      await screen.stoppedAt("while @sharpen");
      await screen.line(/%scores.*MatMul.*\[\[/);
      await screen.picture("attached");
      await page.locator('.debug-toolbar [aria-label^="Disconnect"]').click();
      await screen.expectHidden(".debug-toolbar");
      await screen.until(() => output.includes("the program has ended"), "the program continues");
    } finally {
      program.kill();
    }
  },

  async "the attach picker lists a program that listens"({ page, screen, workspace, open, python }) {
    const program = spawn(python, [path.join(workspace, "listening.py")], { cwd: workspace, stdio: ["pipe", "pipe", "inherit"] });
    let output = "";
    program.stdout.on("data", (data) => (output += data));
    try {
      const port = await screen.until(() => /^\d+(?=\n)/.exec(output)?.[0], "the port of the program");
      launches(workspace, { request: "attach", connect: "${command:pickListener}" });
      await open();
      await screen.openFile("first_steps.nnc");
      await screen.click("%scores");
      await screen.breakHere();
      const row = page.locator(".quick-input-list .monaco-list-row", { hasText: `127.0.0.1:${port}` });
      await screen.pressUntil("F5", ".quick-input-list .monaco-list-row", "the picker");
      await screen.picture("picker");
      await row.click();
      await screen.stoppedAt("%scores");
      await page.locator('.debug-toolbar [aria-label^="Disconnect"]').click();
      await screen.expectHidden(".debug-toolbar");
    } finally {
      program.kill();
    }
  },

  async "an attach by socket waits until the program listens"({ page, screen, workspace, open, python }) {
    // The path of a socket must be short.
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), "nncdbg-"));
    const socket = path.join(folder, "graphs.sock");
    const script = fs.readFileSync(path.join(workspace, "listening.py"), "utf8");
    const late = path.join(workspace, "late.py");
    fs.writeFileSync(late, script.replace('host, port = nncdbg.listen(("127.0.0.1", 0))\nprint(port, flush=True)', `nncdbg.listen(${JSON.stringify(socket)})`));
    launches(workspace, { request: "attach", connect: { socket, waitFor: 60 } });
    await open();
    await screen.openFile("first_steps.nnc");
    await screen.click("%scores");
    await screen.breakHere();
    await screen.pressUntil("F5", '.notification-toast:has-text("Waiting for a program to listen")', "the wait of the editor");
    const program = spawn(python, [late], { cwd: workspace, stdio: ["pipe", "pipe", "inherit"] });
    try {
      await screen.stoppedAt("%scores");
      await page.locator('.debug-toolbar [aria-label^="Disconnect"]').click();
      await screen.expectHidden(".debug-toolbar");
    } finally {
      program.kill();
      fs.rmSync(folder, { recursive: true });
    }
  },
};
