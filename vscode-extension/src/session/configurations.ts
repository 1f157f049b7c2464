// F5 without a launch.json debugs the file at hand; a listing stands for its model.

import * as path from "node:path";
import * as vscode from "vscode";
import { modelOfListing } from "../model/listing";
import { Missing, NotInstalled, offer, readyPython } from "../environment/python";
import { debugsPython, offerDebugpy } from "./debugpy";
import { tokenOf } from "./token";

/** The open program under debugpy, and its graphs. */
const pythonAndGraphs: vscode.DebugConfiguration = {
  type: "nncdbg",
  request: "attach",
  name: "Python + nncdbg",
  debugpy: { program: "${file}" },
  connect: { host: "127.0.0.1", port: 5679 },
};

const MODELS = /\.(onnx|nnc)$/;

export class Configurations implements vscode.DebugConfigurationProvider {
  async provideDebugConfigurations(): Promise<vscode.DebugConfiguration[]> {
    const file = await currentModel();
    const script = vscode.window.activeTextEditor?.document;
    const python = script?.languageId === "python" && debugsPython() ? [pythonAndGraphs] : [];
    return file ? [launchOf(file), ...python] : python;
  }

  async resolveDebugConfiguration(
    _folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (configuration.type || configuration.request || configuration.name) {
      return configuration;
    }
    return launchFor();
  }

  /** A session for which nncdbg is missing does not begin; what can be done is offered instead. */
  async resolveDebugConfigurationWithSubstitutedVariables(
    folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (configuration.debugpy && !debugsPython()) {
      void offerDebugpy(configuration.debugpy.program);
      return undefined;
    }
    if (configuration.request !== "launch") {
      return withToken({ ...configuration, connect: placeOf(configuration.connect) });
    }
    const python = await pythonFor(folder);
    if (!python) {
      return undefined;
    }
    const program = await asModel(String(configuration.program));
    return { ...configuration, program, cwd: configuration.cwd ?? folder?.uri.fsPath, __python: python };
  }
}

/** The Python that runs the server; undefined, with a message, where there is none. */
async function pythonFor(folder: vscode.WorkspaceFolder | undefined): Promise<string | undefined> {
  try {
    return await readyPython(folder?.uri);
  } catch (error) {
    if (!(error instanceof Missing)) {
      throw error;
    }
    // Who cancels an installation knows that nothing is installed.
    if (!(error instanceof NotInstalled)) {
      void offer(vscode.window.showErrorMessage, error);
    }
    return undefined;
  }
}

/** A picked listener is a text: HOST:PORT, or the path of a socket. */
function placeOf(connect: unknown): unknown {
  const tcp = typeof connect === "string" ? /^\[?([^\]/]*)\]?:(\d+)$/.exec(connect) : undefined;
  return tcp ? { host: tcp[1], port: Number(tcp[2]) } : typeof connect === "string" ? { socket: connect } : connect;
}

/** An attach to a server of this user shows the token that the server has written, if there is one. */
async function withToken(configuration: vscode.DebugConfiguration): Promise<vscode.DebugConfiguration> {
  const { connect } = configuration;
  if (typeof connect?.port !== "number" || connect.token || configuration.token) {
    return configuration;
  }
  const token = await tokenOf(connect.host ?? "127.0.0.1", connect.port);
  return token ? { ...configuration, connect: { ...connect, token } } : configuration;
}

/** Debugs a file, by default the one that is open.  A code lens of the language server gives the URI as text. */
export async function debugGraph(place?: vscode.Uri | string): Promise<void> {
  const uri = typeof place === "string" ? vscode.Uri.parse(place, true) : place;
  const configuration = await launchFor(uri);
  if (configuration) {
    const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(configuration.program));
    await vscode.debug.startDebugging(folder, configuration);
  }
}

/** A launch of a file, by default of the one that is open; undefined, with a message, where that is no model. */
export async function launchFor(uri?: vscode.Uri): Promise<vscode.DebugConfiguration | undefined> {
  const file = uri ? await asModel(uri.fsPath) : await currentModel();
  if (!file) {
    void vscode.window.showInformationMessage("nncdbg: open an .onnx model or graph text (.nnc) to debug it.");
    return undefined;
  }
  return launchOf(file);
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
  return { type: "nncdbg", request: "launch", name: `Debug ${path.basename(program)}`, program, stopOnEntry: true };
}
