// Debug configurations.  F5 without a launch.json debugs the open file; for a listing, its model,
// and for the text of a program folder, the folder.

import * as path from "node:path";
import * as vscode from "vscode";
import { modelOfListing, programOf } from "../model/listing";
import { literal } from "../environment/process";
import type { LastRuns } from "../runForm/lastRuns";
import { Missing, NotInstalled, offer, readyPython } from "../environment/python";
import { hasDebugpy, offerDebugpy } from "./debugpy";
import { tokenOf } from "./token";

/** Debugs the open Python program, and the graphs that it runs. */
const pythonAndGraphs: vscode.DebugConfiguration = {
  type: "nncdbg",
  request: "attach",
  name: "Python + nncdbg",
  debugpy: { program: "${file}" },
  connect: { host: "127.0.0.1", port: 5679 },
};

/** Settings below `nncdbg.launch` with the names of launch keys. */
const LAUNCH_SETTINGS = ["backend", "allocator", "history", "view"];

const MODELS = /\.(onnx|nnc|pt2)$/;

export class Configurations implements vscode.DebugConfigurationProvider {
  constructor(private readonly runs: LastRuns) {}

  async provideDebugConfigurations(): Promise<vscode.DebugConfiguration[]> {
    const file = await currentModel();
    const script = vscode.window.activeTextEditor?.document;
    const python = script?.languageId === "python" && hasDebugpy() ? [pythonAndGraphs] : [];
    return file ? [launchOf(programOf(file)), ...python] : python;
  }

  async resolveDebugConfiguration(
    _folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (configuration.type || configuration.request || configuration.name) {
      return configuration;
    }
    return launchFor(this.runs);
  }

  /** Without nncdbg, no session starts: the user can install it instead. */
  async resolveDebugConfigurationWithSubstitutedVariables(
    folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (configuration.debugpy && !hasDebugpy()) {
      void offerDebugpy(configuration.debugpy.program ?? configuration.debugpy.module);
      return undefined;
    }
    if (configuration.request !== "launch" && !configuration.ranks) {
      return withToken({ ...configuration, connect: addressOf(configuration.connect) });
    }
    const python = await pythonFor(folder);
    if (!python) {
      return undefined;
    }
    if (configuration.request !== "launch") {
      return { ...configuration, __python: python };
    }
    const program = programOf(await asModel(String(configuration.program)));
    return { ...settingsOf(folder), ...configuration, program, cwd: configuration.cwd ?? folder?.uri.fsPath, __python: python };
  }
}

/** The Python that runs the server; undefined, with a message, if there is none. */
async function pythonFor(folder: vscode.WorkspaceFolder | undefined): Promise<string | undefined> {
  try {
    return await readyPython(folder?.uri);
  } catch (error) {
    if (!(error instanceof Missing)) {
      throw error;
    }
    // The user has canceled the installation.
    if (!(error instanceof NotInstalled)) {
      void offer(vscode.window.showErrorMessage, error);
    }
    return undefined;
  }
}

/** The keys of launches that the user's settings choose. */
function settingsOf(folder: vscode.WorkspaceFolder | undefined): object {
  const settings = vscode.workspace.getConfiguration("nncdbg.launch", folder);
  const chosen = LAUNCH_SETTINGS.map((key) => [key, settings.get<string>(key)] as const);
  return Object.fromEntries(chosen.filter(([, value]) => value));
}

/** The address of a picked listener, which is a text: HOST:PORT, or the path of a socket. */
function addressOf(connect: unknown): unknown {
  const tcp = typeof connect === "string" ? /^\[?([^\]/]*)\]?:(\d+)$/.exec(connect) : undefined;
  return tcp ? { host: tcp[1], port: Number(tcp[2]) } : typeof connect === "string" ? { socket: connect } : connect;
}

/** Adds the token that a server of this user has written. */
async function withToken(configuration: vscode.DebugConfiguration): Promise<vscode.DebugConfiguration> {
  const { connect } = configuration;
  if (typeof connect?.port !== "number" || connect.token || configuration.token) {
    return configuration;
  }
  const token = await tokenOf(connect.host ?? "127.0.0.1", connect.port);
  return token ? { ...configuration, connect: { ...connect, token } } : configuration;
}

/** Debugs a file, by default the open one.  A code lens of the language server has the URI as text. */
export async function debugGraph(runs: LastRuns, target?: vscode.Uri | string): Promise<void> {
  const uri = typeof target === "string" ? vscode.Uri.parse(target, true) : target;
  const configuration = await launchFor(runs, uri);
  if (configuration) {
    const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(configuration.program));
    await vscode.debug.startDebugging(folder, configuration);
  }
}

/** The launch of a file, by default of the open one, with the choices of its last run in the form; undefined, with a
 * message, if that is no model. */
export async function launchFor(runs: LastRuns, uri?: vscode.Uri): Promise<vscode.DebugConfiguration | undefined> {
  const file = uri ? await asModel(uri.fsPath) : await currentModel();
  if (!file) {
    void vscode.window.showInformationMessage("nncdbg: open an .onnx model, a .pt2 file or graph text (.nnc) to debug it.");
    return undefined;
  }
  const launch = launchOf(programOf(file));
  return { ...launch, ...runs.keys(launch.program) };
}

export async function currentModel(): Promise<string | undefined> {
  const tab = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
  const uri = (tab as { uri?: vscode.Uri } | undefined)?.uri;
  return uri?.scheme === "file" && MODELS.test(uri.fsPath) ? asModel(uri.fsPath) : undefined;
}

export async function asModel(file: string): Promise<string> {
  return (await modelOfListing(file)) ?? file;
}

export function launchOf(program: string): vscode.DebugConfiguration {
  return { type: "nncdbg", request: "launch", name: `Debug ${path.basename(program)}`, program: literal(program), stopOnEntry: true };
}
