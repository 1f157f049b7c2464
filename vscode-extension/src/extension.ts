// Registers the extension's contributions.  The logic is in Python: a debug server and a language server.

import * as vscode from "vscode";
import { install, selectPython, setUp } from "./environment/python";
import { ChangedModels } from "./model/changes";
import { openExample } from "./model/example";
import { ModelEditor } from "./model/listing";
import { RunWith } from "./runForm/command";
import { InputsLens } from "./runForm/inputsLens";
import { LastRuns } from "./runForm/lastRuns";
import { Adapters } from "./session/adapter";
import { type VariableContext, currentSession, registerSessionCommands, valueOf, withErrorMessage } from "./session/commands";
import { Configurations, debugGraph } from "./session/configurations";
import { Counterparts } from "./session/counterparts";
import { Connections, type ObservedRequest } from "./session/connections";
import { EvaluatableValues, InlineValues } from "./session/inlineValues";
import { pickListener } from "./session/listeners";
import { Summaries } from "./session/summary";

const TYPE = "nncdbg";
const NNC = "nnc";
/** Texts in files, and micro programs, which the debug server sends. */
const SCRIPTS = [{ language: "python", scheme: "file" }, { language: "python", scheme: "debug" }];
const TEXTS = [{ language: NNC, scheme: "file" }, { language: NNC, scheme: "debug" }];

/** What other extensions can observe. */
export interface Exports {
  /** Requests of the extension itself; VS Code's trackers report those of VS Code. */
  onDidSendRequest: vscode.Event<ObservedRequest>;
}

export function activate(context: vscode.ExtensionContext): Exports {
  setUp(context);
  const runs = new LastRuns(context.workspaceState);
  const configurations = new Configurations(runs);
  const changes = new ChangedModels();
  const models = new ModelEditor(changes);
  const connections = new Connections();
  const runWith = new RunWith(context, runs);
  const values = new InlineValues(connections);
  const provide = () => configurations.provideDebugConfigurations();
  const dynamic = vscode.DebugConfigurationProviderTriggerKind.Dynamic;
  context.subscriptions.push(
    changes,
    models,
    connections,
    runs,
    runWith,
    values,
    new Counterparts(connections, TEXTS),
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, new Adapters(connections, runWith)),
    vscode.debug.registerDebugConfigurationProvider(TYPE, configurations),
    vscode.debug.registerDebugConfigurationProvider(TYPE, { provideDebugConfigurations: provide }, dynamic),
    vscode.languages.registerInlineValuesProvider([...TEXTS, ...SCRIPTS], values),
    vscode.debug.registerDebugAdapterTrackerFactory(TYPE, values),
    vscode.debug.registerDebugAdapterTrackerFactory(TYPE, new Summaries()),
    vscode.languages.registerEvaluatableExpressionProvider(TEXTS, new EvaluatableValues()),
    vscode.window.registerCustomEditorProvider(ModelEditor.type, models),
    models.replaceTexts(context.globalState),
    ...registerSessionCommands(),
    ...registerViews(context, connections, values),
    ...registerTensorViews(context, connections, values),
    ...registerNanWatch(context),
    ...registerRuns(context),
    vscode.languages.registerCodeLensProvider({ language: NNC, scheme: "file" }, new InputsLens(runs)),
    vscode.commands.registerCommand("nncdbg.debugGraph", (target?: vscode.Uri | string) => debugGraph(runs, target)),
    vscode.commands.registerCommand("nncdbg.runWith", (file?: vscode.Uri) => runWith.open(file)),
    vscode.commands.registerCommand("nncdbg.pickListener", pickListener),
    vscode.commands.registerCommand("nncdbg.selectPython", selectPython),
    vscode.commands.registerCommand("nncdbg.install", () => install()),
    vscode.commands.registerCommand("nncdbg.openExample", () => openExample(context.extensionUri)),
  );
  startLanguage(context);
  return { onDidSendRequest: connections.onDidSendRequest };
}

/** Loads a part at its first use, and disposes it with the extension. */
function lazy<Part extends vscode.Disposable>(context: vscode.ExtensionContext, load: () => Promise<Part>): () => Promise<Part> {
  let part: Promise<Part> | undefined;
  const loadOnce = async () => {
    const loaded = await load();
    context.subscriptions.push(loaded);
    return loaded;
  };
  return () => (part ??= loadOnce());
}

interface SessionViews {
  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker;
}

/** Has views follow all sessions.  The first session loads them. */
function followSessions(views: () => Promise<SessionViews>): vscode.Disposable {
  return vscode.debug.registerDebugAdapterTrackerFactory(TYPE, {
    createDebugAdapterTracker: async (session) => (await views()).follow(session),
  });
}

const VIEW_COMMANDS = ["explain", "openGraph", "showTimeline", "addWatch", "timeline.goTo", "timeline.setMark", "timeline.renameMark", "timeline.deleteMark", "map.openInNetron"];

function registerViews(context: vscode.ExtensionContext, connections: Connections, values: InlineValues): vscode.Disposable[] {
  const views = lazy(context, async () => new (await import("./views/views")).Views(context.extensionUri, connections, values.onProvided));
  return [
    followSessions(views),
    ...VIEW_COMMANDS.map((name) =>
      vscode.commands.registerCommand(`nncdbg.${name}`, (of) => withErrorMessage(async () => (await views()).commands[name](of as never))),
    ),
  ];
}

function registerTensorViews(context: vscode.ExtensionContext, connections: Connections, values: InlineValues): vscode.Disposable[] {
  const views = lazy(context, async () => new (await import("./tensor/tensorViews")).TensorViews(context.extensionUri, connections, values.onProvided));
  const open = async (of?: VariableContext | vscode.Uri) => {
    const session = currentSession();
    const value = await valueOf(of);
    if (value) {
      (await views()).open(session, value);
    }
  };
  return [
    followSessions(views),
    vscode.commands.registerCommand("nncdbg.viewTensor", (of?: VariableContext | vscode.Uri) => withErrorMessage(() => open(of))),
  ];
}

/** Registers the NaN watch in the Test Explorer.  The first listing, run or open graph text loads it. */
function registerNanWatch(context: vscode.ExtensionContext): vscode.Disposable[] {
  const controller = vscode.tests.createTestController("nncdbg.watch", "nncdbg: watch models for NaN");
  const watch = lazy(context, async () => {
    const { NanWatch } = await import("./nanWatch/nanWatch");
    return new NanWatch(controller, profile, context.storageUri ?? context.globalStorageUri);
  });
  const kinds = vscode.TestRunProfileKind;
  const profile = controller.createRunProfile("Watch", kinds.Run, async (request, token) => (await watch()).run(request, token), true);
  const debug = controller.createRunProfile("Stop at the Origin", kinds.Debug, async (request, token) => (await watch()).run(request, token, true), true);
  controller.resolveHandler = async (item) => (item ? undefined : (await watch()).find());
  controller.refreshHandler = async (token) => (await watch()).find(token);
  const opened = async (document: vscode.TextDocument) => document.languageId === NNC && (await watch()).addDocument(document);
  setImmediate(() => vscode.workspace.textDocuments.forEach((each) => void opened(each)));
  const register = vscode.commands.registerCommand;
  return [
    controller,
    profile,
    debug,
    vscode.workspace.onDidOpenTextDocument(opened),
    register("nncdbg.watchModel", async (file?: vscode.Uri) => (await watch()).watchModel(file)),
    register("nncdbg.watch.debug", async (model: string, kind: string) => (await watch()).debug(model, kind)),
    register("nncdbg.watch.openBundle", async (bundle: string) => (await watch()).openBundle(bundle)),
  ];
}

const RUN_COMMANDS = ["showCurves", "openStep", "fork", "refresh"];
const DATABASES = "**/*.db";

/** Registers the view of run journals.  The first database of a trusted workspace loads it. */
function registerRuns(context: vscode.ExtensionContext): vscode.Disposable[] {
  const runs = lazy(context, async () => new (await import("./journal/runs")).Runs(context.extensionUri));
  const find = async () => {
    if (vscode.workspace.isTrusted && (await vscode.workspace.findFiles(DATABASES, undefined, 1)).length) {
      await (await runs()).find();
    }
  };
  setImmediate(() => void find());
  const watcher = vscode.workspace.createFileSystemWatcher(DATABASES, false, true, false);
  return [
    watcher,
    watcher.onDidCreate(async (file) => vscode.workspace.isTrusted && (await runs()).addNew(file.fsPath)),
    watcher.onDidDelete(async (file) => (await runs()).remove(file.fsPath)),
    vscode.workspace.onDidGrantWorkspaceTrust(() => void find()),
    ...RUN_COMMANDS.map((name) =>
      vscode.commands.registerCommand(`nncdbg.runs.${name}`, (of) => withErrorMessage(async () => (await runs()).commands[name](of as never))),
    ),
  ];
}

/** Starts the language client with the first graph text in a trusted workspace. */
function startLanguage(context: vscode.ExtensionContext): void {
  let started = false;
  const language = lazy(context, async () => new (await import("./language/language")).Language());
  const start = async (): Promise<void> => {
    if (vscode.workspace.isTrusted) {
      started = true;
      await (await language()).restart();
    }
  };
  const startFor = (document: vscode.TextDocument) => {
    if (!started && document.languageId === NNC) {
      void start();
    }
  };
  context.subscriptions.push(
    vscode.workspace.onDidOpenTextDocument(startFor),
    vscode.workspace.onDidGrantWorkspaceTrust(() => vscode.workspace.textDocuments.forEach(startFor)),
    vscode.commands.registerCommand("nncdbg.restartLanguageServer", start),
  );
  // Not during the activation, for which VS Code waits.
  setImmediate(() => vscode.workspace.textDocuments.forEach(startFor));
}
