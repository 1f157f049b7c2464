// What VS Code knows of nncdbg.  The logic is in Python: a debug server and a language server, started from here.

import * as vscode from "vscode";
import { Adapters } from "./session/adapter";
import { ChangedModels } from "./model/changes";
import { currentSession, registerSessionCommands, told, valueOf } from "./session/commands";
import { Configurations, debugGraph } from "./session/configurations";
import { Endings } from "./session/summary";
import { openExample } from "./model/example";
import type { Language } from "./language/language";
import { pickListener } from "./session/listeners";
import { ModelEditor } from "./model/listing";
import type { NanWatch } from "./nanWatch/nanWatch";
import { install, selectPython, setUp } from "./environment/python";
import { RunWith } from "./runForm/command";
import type { TensorViews } from "./tensor/tensorViews";
import { EvaluatableValues, InlineValues } from "./session/inlineValues";
import type { Views } from "./views/views";
import { type Exchange, Wires } from "./session/connections";

const TYPE = "nncdbg";
const NNC = "nnc";
/** Texts in files, and those of micro programs, which the debug server gives. */
const TEXTS = [
  { language: NNC, scheme: "file" },
  { language: NNC, scheme: "debug" },
];

/** What other extensions may look at. */
export interface Exports {
  /** Requests that this one makes by itself; VS Code's trackers see those that VS Code makes. */
  onDidAsk: vscode.Event<Exchange>;
}

export function activate(context: vscode.ExtensionContext): Exports {
  setUp(context);
  const configurations = new Configurations();
  const changes = new ChangedModels();
  const models = new ModelEditor(changes);
  const wires = new Wires();
  const runWith = new RunWith(context);
  const values = new InlineValues(wires);
  const provide = () => configurations.provideDebugConfigurations();
  const dynamic = vscode.DebugConfigurationProviderTriggerKind.Dynamic;
  context.subscriptions.push(
    changes,
    models,
    wires,
    runWith,
    values,
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, new Adapters(wires, runWith)),
    vscode.debug.registerDebugConfigurationProvider(TYPE, configurations),
    vscode.debug.registerDebugConfigurationProvider(TYPE, { provideDebugConfigurations: provide }, dynamic),
    vscode.languages.registerInlineValuesProvider(TEXTS, values),
    vscode.debug.registerDebugAdapterTrackerFactory(TYPE, values),
    vscode.debug.registerDebugAdapterTrackerFactory(TYPE, new Endings()),
    vscode.languages.registerEvaluatableExpressionProvider(TEXTS, new EvaluatableValues()),
    vscode.window.registerCustomEditorProvider(ModelEditor.type, models),
    ...registerSessionCommands(),
    ...registerViews(context, wires, values),
    ...registerTensorViews(context, wires, values),
    ...registerNanWatch(context),
    vscode.commands.registerCommand("nncdbg.debugGraph", debugGraph),
    vscode.commands.registerCommand("nncdbg.runWith", (place?: vscode.Uri) => runWith.open(place)),
    vscode.commands.registerCommand("nncdbg.pickListener", pickListener),
    vscode.commands.registerCommand("nncdbg.selectPython", selectPython),
    vscode.commands.registerCommand("nncdbg.install", () => install()),
    vscode.commands.registerCommand("nncdbg.openExample", () => openExample(context.extensionUri)),
  );
  startLanguage(context);
  return { onDidAsk: wires.onDidAsk };
}

const VIEW_COMMANDS = ["explain", "openGraph", "addWatch", "timeline.goTo", "timeline.setMark", "timeline.renameMark", "timeline.deleteMark", "map.openInNetron"];

interface SessionViews extends vscode.Disposable {
  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker;
}

/** What is made with the first session, and follows each. */
function late<Made extends SessionViews>(context: vscode.ExtensionContext, make: () => Promise<Made>) {
  let made: Promise<Made> | undefined;
  const load = async (): Promise<Made> => {
    const views = await make();
    context.subscriptions.push(views);
    return views;
  };
  const views = () => (made ??= load());
  const tracked = vscode.debug.registerDebugAdapterTrackerFactory(TYPE, {
    createDebugAdapterTracker: async (session) => (await views()).follow(session),
  });
  return { views, tracked };
}

/** The views in the panel are a bundle of their own, loaded with the first session. */
function registerViews(context: vscode.ExtensionContext, wires: Wires, values: InlineValues): vscode.Disposable[] {
  const make = async () => new (await import("./views/views")).Views(context.extensionUri, wires, values.onGiven);
  const { views, tracked } = late<Views>(context, make);
  return [
    tracked,
    ...VIEW_COMMANDS.map((name) =>
      vscode.commands.registerCommand(`nncdbg.${name}`, (of) => told(async () => (await views()).commands[name](of as never))),
    ),
  ];
}

/** So are the views of tensors, which follow the sessions. */
function registerTensorViews(context: vscode.ExtensionContext, wires: Wires, values: InlineValues): vscode.Disposable[] {
  const make = async () => new (await import("./tensor/tensorViews")).TensorViews(context.extensionUri, wires, values.onGiven);
  const { views, tracked } = late<TensorViews>(context, make);
  return [
    tracked,
    vscode.commands.registerCommand("nncdbg.viewTensor", (of?: Parameters<typeof valueOf>[0]) =>
      told(async () => {
        const session = currentSession();
        const value = await valueOf(of);
        if (value) {
          (await views()).open(session, value);
        }
      }),
    ),
  ];
}

/** The Test Explorer's part is a bundle of its own, loaded when models are listed or watched, or the first is opened. */
function registerNanWatch(context: vscode.ExtensionContext): vscode.Disposable[] {
  const controller = vscode.tests.createTestController("nncdbg.watch", "nncdbg: watch models for NaN");
  let made: Promise<NanWatch> | undefined;
  const load = async (): Promise<NanWatch> => {
    const { NanWatch: Made } = await import("./nanWatch/nanWatch");
    const watch = new Made(controller, profile, context.storageUri ?? context.globalStorageUri);
    context.subscriptions.push(watch);
    return watch;
  };
  const watch = () => (made ??= load());
  const kinds = vscode.TestRunProfileKind;
  const profile = controller.createRunProfile("Watch", kinds.Run, async (request, token) => (await watch()).run(request, token), true);
  const debug = controller.createRunProfile("Stop at the Origin", kinds.Debug, async (request, token) => (await watch()).run(request, token, true), true);
  controller.resolveHandler = async (item) => (item ? undefined : (await watch()).find());
  controller.refreshHandler = async (token) => (await watch()).find(token);
  const opened = async (document: vscode.TextDocument) => document.languageId === NNC && (await watch()).opened(document);
  setImmediate(() => vscode.workspace.textDocuments.forEach((each) => void opened(each)));
  const register = vscode.commands.registerCommand;
  return [
    controller,
    profile,
    debug,
    vscode.workspace.onDidOpenTextDocument(opened),
    register("nncdbg.watchModel", async (place?: vscode.Uri) => (await watch()).watchModel(place)),
    register("nncdbg.watch.debug", async (model: string, kind: string) => (await watch()).debug(model, kind)),
    register("nncdbg.watch.openBundle", async (bundle: string) => (await watch()).openBundle(bundle)),
  ];
}

/** The client is a bundle of its own, loaded when there is a graph text and the workspace is trusted. */
function startLanguage(context: vscode.ExtensionContext): void {
  let language: Language | undefined;
  const start = async (): Promise<void> => {
    if (!vscode.workspace.isTrusted) {
      return;
    }
    if (!language) {
      const { Language: Made } = await import("./language/language");
      language = new Made();
      context.subscriptions.push(language);
    }
    await language.restart();
  };
  const first = (document: vscode.TextDocument) => {
    if (!language && document.languageId === NNC) {
      void start();
    }
  };
  context.subscriptions.push(
    vscode.workspace.onDidOpenTextDocument(first),
    vscode.workspace.onDidGrantWorkspaceTrust(() => vscode.workspace.textDocuments.forEach(first)),
    vscode.commands.registerCommand("nncdbg.restartLanguageServer", start),
  );
  // Texts that are open already wait until VS Code, which waits for the activation, is done with it.
  setImmediate(() => vscode.workspace.textDocuments.forEach(first));
}
