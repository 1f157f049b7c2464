// The Python that runs nncdbg: the selected one if it has nncdbg, else the extension's own environment, which is
// installed at its first use.  In an untrusted workspace, no Python is started.

import * as path from "node:path";
import * as vscode from "vscode";
import { Environment, NoPython, findPython } from "./ownEnvironment";
import { runPython } from "./process";

const PYTHON_EXTENSION = "ms-python.python";
const VERSION = ["-c", "import nncdbg; print(nncdbg.__version__)"];

interface PythonExtension {
  environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

/** nncdbg cannot run; `remedies` are the buttons of the message. */
export class Missing extends Error {
  constructor(
    message: string,
    readonly remedies: readonly Remedy[] = [],
  ) {
    super(message);
  }
}

/** The extension's own environment is missing: the user has canceled its installation. */
export class NotInstalled extends Missing {
  constructor() {
    super("nncdbg is not installed: you canceled the installation");
  }
}

type Remedy = keyof typeof REMEDIES;

const REMEDIES = {
  "Select Python": () => selectPython(),
  "Use nncdbg's Own Python": () => useOwnPython(),
};

let environment: Environment;
let log: vscode.OutputChannel;
const installed = new vscode.EventEmitter<void>();

/** Called once, at activation. */
export function setUp(context: vscode.ExtensionContext): void {
  const storage = path.join(context.globalStorageUri.fsPath, "environments");
  environment = new Environment(context.asAbsolutePath("out"), storage);
  context.subscriptions.push(installed, { dispose: () => log?.dispose() });
}

/** The Python of the setting, or the one that is selected in the Python extension. */
async function chosenPython(resource: vscode.Uri | undefined): Promise<{ setting?: string; selected?: string }> {
  const setting = vscode.workspace.getConfiguration("nncdbg", resource).get<string>("python");
  if (setting) {
    return { setting };
  }
  const environments = (await pythonExtension())?.environments;
  return { selected: environments?.getActiveEnvironmentPath(resource).path };
}

async function pythonExtension(): Promise<PythonExtension | undefined> {
  const extension = vscode.extensions.getExtension<PythonExtension>(PYTHON_EXTENSION);
  return extension && (extension.isActive ? extension.exports : extension.activate());
}

/** Calls `changed` when the Python may change: by the setting, the Python extension or an installation. */
export async function onPythonChange(changed: () => void): Promise<vscode.Disposable> {
  const listeners = [
    installed.event(changed),
    vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("nncdbg.python") && changed()),
  ];
  const environments = (await pythonExtension())?.environments;
  if (environments) {
    listeners.push(environments.onDidChangeActiveEnvironmentPath(changed));
  }
  return vscode.Disposable.from(...listeners);
}

/** The Python for a resource, which has nncdbg.  Throws `NotInstalled` if that is the missing own environment, and `Missing` for other errors. */
async function pythonWithNncdbg(resource: vscode.Uri | undefined): Promise<string> {
  if (!vscode.workspace.isTrusted) {
    throw new Missing("nncdbg is disabled in an untrusted workspace");
  }
  const { setting, selected } = await chosenPython(resource);
  if (setting) {
    warnOfOtherVersion(setting, await versionOf(setting));
    return setting;
  }
  const found = selected && (await versionOf(selected).catch(() => undefined));
  if (selected && found) {
    warnOfOtherVersion(selected, found);
    return selected;
  }
  const own = await environment.python();
  if (!own) {
    throw new NotInstalled();
  }
  return own;
}

/** The same, but installs the own environment if it is missing.  Throws `Missing` also if the user cancels. */
export async function readyPython(resource: vscode.Uri | undefined): Promise<string> {
  try {
    return await pythonWithNncdbg(resource);
  } catch (error) {
    if (error instanceof NotInstalled) {
      const python = await install(resource);
      if (python) {
        return python;
      }
    }
    throw error;
  }
}

async function versionOf(python: string): Promise<string> {
  try {
    return (await runPython(python, VERSION)).stdout.trim();
  } catch (error) {
    const { code, stderr } = error as NodeJS.ErrnoException & { stderr?: string };
    const remedies: Remedy[] = ["Use nncdbg's Own Python", "Select Python"];
    if (code === "ENOENT" || code === "EACCES") {
      throw new Missing(`there is no Python at ${python}`, remedies);
    }
    if (stderr?.includes("No module named 'nncdbg'")) {
      throw new Missing(`nncdbg is not installed for ${python}`, remedies);
    }
    const why = stderr?.trim().split("\n").at(-1) || String(error);
    throw new Missing(`cannot start nncdbg with ${python}: ${why}`, remedies);
  }
}

const warned = new Set<string>();

function warnOfOtherVersion(python: string, found: string): void {
  const mine = vscode.extensions.getExtension("nncdbg.nncdbg")?.packageJSON.version as string | undefined;
  const key = `${python} ${found}`;
  if (found === mine || warned.has(key)) {
    return;
  }
  warned.add(key);
  const message = `nncdbg ${found} is installed for ${python}, but this extension needs ${mine}; some features may not work.`;
  void offer(vscode.window.showWarningMessage, new Missing(message, ["Use nncdbg's Own Python", "Select Python"]));
}

/** Shows an error with its remedies as buttons. */
export async function offer(show: typeof vscode.window.showErrorMessage, missing: Missing): Promise<void> {
  const chosen = await show<Remedy>(missing.message, ...missing.remedies);
  if (chosen) {
    await REMEDIES[chosen]();
  }
}

export async function selectPython(): Promise<void> {
  if (vscode.extensions.getExtension(PYTHON_EXTENSION)) {
    await vscode.commands.executeCommand("python.setInterpreter");
  } else {
    await vscode.commands.executeCommand("workbench.action.openSettings", "nncdbg.python");
  }
}

/** Clears the setting for another Python, and installs the own environment if it is missing. */
async function useOwnPython(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("nncdbg");
  const { workspaceFolderValue, workspaceValue, globalValue } = settings.inspect<string>("python") ?? {};
  const targets: [string | undefined, vscode.ConfigurationTarget][] = [
    [workspaceFolderValue, vscode.ConfigurationTarget.WorkspaceFolder],
    [workspaceValue, vscode.ConfigurationTarget.Workspace],
    [globalValue, vscode.ConfigurationTarget.Global],
  ];
  for (const [value, target] of targets) {
    if (value !== undefined) {
      await settings.update("python", undefined, target);
    }
  }
  if (!(await environment.python())) {
    await install();
  }
}

let installation: Promise<string | undefined> | undefined;

/** Installs the own environment, or joins an installation in progress; undefined if the user cancels. */
export function install(resource?: vscode.Uri): Promise<string | undefined> {
  installation ??= installing(resource).finally(() => (installation = undefined));
  return installation;
}

async function installing(resource: vscode.Uri | undefined): Promise<string | undefined> {
  log ??= vscode.window.createOutputChannel("nncdbg installation");
  const options = { location: vscode.ProgressLocation.Notification, title: "Installing nncdbg (once)", cancellable: true };
  for (;;) {
    try {
      const python = await vscode.window.withProgress(options, (progress, token) => withLog(resource, progress, token));
      installed.fire();
      return python;
    } catch (error) {
      const { name, message } = error as Error;
      log.appendLine(name === "AbortError" ? "canceled" : message);
      if (name === "AbortError") {
        return undefined;
      }
      log.show(true);
      const select = error instanceof NoPython ? ["Select Python"] : [];
      const chosen = await vscode.window.showErrorMessage(`nncdbg cannot be installed: ${message}`, "Retry", "Show Log", ...select);
      if (chosen === "Select Python") {
        await selectPython();
      }
      if (chosen !== "Retry") {
        return undefined;
      }
    }
  }
}

async function withLog(
  resource: vscode.Uri | undefined,
  progress: vscode.Progress<{ message: string }>,
  token: vscode.CancellationToken,
): Promise<string> {
  const abort = new AbortController();
  const listener = token.onCancellationRequested(() => abort.abort());
  const begun = Date.now();
  let step = "";
  const show = () => progress.report({ message: `${step} · ${Math.round((Date.now() - begun) / 1000)} s` });
  const timer = setInterval(show, 1000);
  const reporter = {
    line: (text: string) => log.appendLine(text),
    step: (text: string) => {
      step = text;
      show();
    },
  };
  try {
    const { selected } = await chosenPython(resource);
    const python = await environment.install(await findPython(selected ? [selected] : []), reporter, abort.signal);
    log.appendLine(`installed in ${Math.round((Date.now() - begun) / 1000)} s: ${python}`);
    return python;
  } finally {
    clearInterval(timer);
    listener.dispose();
  }
}
