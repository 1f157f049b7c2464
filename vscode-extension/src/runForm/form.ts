// The form "Run with": inputs, sizes, backend, allocator and seed of a model.  The choices are stored per model.
// Its page: webview/runForm.

import * as path from "node:path";
import * as vscode from "vscode";
import { readWithNncdbg } from "../environment/process";
import { Page } from "../pages/page";
import { type Choices, choicesOf, type FromForm, IMAGES, launchKeys, type Signature, type ToForm } from "./fields";
import type { LastRuns } from "./lastRuns";

const PRINT = ["print", "--json"];

interface DebuggerManifest {
  contributes: { debuggers: { configurationAttributes: { launch: { properties: { backend: { anyOf: [{ enum: string[] }] }; allocator: { enum: string[] } } } } }[] };
}

export class RunForm {
  private panel: vscode.WebviewPanel | undefined;
  private page: Page<FromForm, ToForm> | undefined;
  private configuration: vscode.DebugConfiguration | undefined;
  private folder: vscode.WorkspaceFolder | undefined;
  private shown: Extract<ToForm, { kind: "show" }> | undefined;

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly runs: LastRuns,
  ) {}

  /** Shows the form for a launch; `error` is the one of a failed launch.  Throws if the model cannot be read. */
  async open(configuration: vscode.DebugConfiguration, python: string, error = ""): Promise<void> {
    const { program } = configuration;
    this.folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(program));
    const signature = await this.signature(configuration, python);
    this.configuration = configuration;
    const { backend, allocator } = this.properties();
    const model = { ...signature, title: path.basename(program), backends: backend.anyOf[0].enum, allocators: allocator.enum };
    this.shown = { kind: "show", model, choices: this.choices(configuration), error: inForm(error) };
    this.reveal(`Run ${model.title} with`);
  }

  private async signature({ program, flat, allowStores = [], cwd }: vscode.DebugConfiguration, python: string): Promise<Signature> {
    const stores = (allowStores as string[]).flatMap((each) => ["--allow-store", each]);
    const options = [...(flat ? ["--flat"] : []), ...stores];
    const printed = await readWithNncdbg(python, [...PRINT, ...options, program], cwd ?? this.folder?.uri.fsPath);
    return JSON.parse(printed) as Signature;
  }

  /** The keys of launches in the manifest, which lists the built-in backends and the allocators. */
  private properties() {
    const [debugger_] = (this.context.extension.packageJSON as DebuggerManifest).contributes.debuggers;
    return debugger_.configurationAttributes.launch.properties;
  }

  /** The choices of the configuration, and for others those of the last run. */
  private choices(configuration: vscode.DebugConfiguration): Choices {
    const last = this.runs.choices(configuration.program);
    const now = choicesOf(configuration);
    return {
      inputs: { ...last?.inputs, ...now.inputs },
      dims: { ...last?.dims, ...now.dims },
      backend: now.backend || last?.backend || "",
      allocator: now.allocator || last?.allocator || "",
      seed: now.seed || last?.seed || "",
    };
  }

  private reveal(title: string): void {
    if (this.panel) {
      this.panel.title = title;
      this.panel.reveal();
      this.show();
      return;
    }
    const { extensionUri } = this.context;
    const panel = vscode.window.createWebviewPanel("nncdbg.run", title, vscode.ViewColumn.Active, { retainContextWhenHidden: true });
    this.panel = panel;
    panel.iconPath = vscode.Uri.joinPath(extensionUri, "media", "nnc-dark.svg");
    panel.onDidDispose(() => (this.panel = this.page = undefined));
    this.page = new Page<FromForm, ToForm>(panel.webview, extensionUri, { name: "runForm", title: "Run with" }, {
      ready: () => this.show(),
      chooseFile: ({ input }) => void this.chooseFile(input),
      start: ({ choices }) => void this.start(choices),
      save: ({ choices }) => void this.save(choices),
    });
  }

  private show(): void {
    if (this.shown) {
      this.page?.send(this.shown);
    }
  }

  private async chooseFile(input: string): Promise<void> {
    const model = vscode.Uri.file(path.dirname(this.configuration?.program));
    const filters = { "Arrays and images": ["npy", "npz", ...IMAGES], "NumPy arrays": ["npy", "npz"], Images: IMAGES };
    const [file] = (await vscode.window.showOpenDialog({ title: `Data for %${input}`, defaultUri: model, filters })) ?? [];
    if (file) {
      this.page?.send({ kind: "file", input, file: file.fsPath });
    }
  }

  /** Closes the form and starts a session, or shows why it cannot. */
  private async start(choices: Choices): Promise<void> {
    const launch = await this.launch(choices);
    if (launch) {
      this.panel?.dispose();
      await vscode.debug.startDebugging(this.folder, { ...launch, __form: true });
    }
  }

  /** Adds the run to the launch.json of the model's folder in the workspace, and opens that. */
  private async save(choices: Choices): Promise<void> {
    const launch = await this.launch(choices);
    if (launch && this.shown) {
      try {
        await saveLaunch(launch, this.folder);
      } catch (error) {
        this.shown = { ...this.shown, choices, error: (error as Error).message };
        this.show();
      }
    }
  }

  /** Keeps the choices.  Returns their launch, or shows the error of a field. */
  private async launch(choices: Choices): Promise<vscode.DebugConfiguration | undefined> {
    const { configuration, shown } = this;
    if (!configuration || !shown) {
      return undefined;
    }
    await this.runs.keep(configuration.program, choices);
    try {
      return { ...configuration, ...launchKeys(choices) };
    } catch (error) {
      this.shown = { ...shown, choices, error: (error as Error).message };
      this.show();
      return undefined;
    }
  }

  dispose(): void {
    this.panel?.dispose();
  }
}

/** An error of the server, with a hint about the form in place of one about the command line. */
const inForm = (error: string): string => error.replace(/\n *hint: .*--.*/g, "\nChoose a file below, or generated values with sizes.");

/** Adds a launch to a launch.json, with a path in the workspace.  Throws without a workspace. */
async function saveLaunch({ type, request, name, program, ...more }: vscode.DebugConfiguration, folder: vscode.WorkspaceFolder | undefined): Promise<void> {
  if (!folder) {
    throw new Error("the model is not in the workspace: open its folder to save a launch.json");
  }
  const inside = path.relative(folder.uri.fsPath, program);
  const settings = vscode.workspace.getConfiguration("launch", folder);
  const existing = settings.get<vscode.DebugConfiguration[]>("configurations") ?? [];
  const names = new Set(existing.map((each) => each.name));
  let unique = name;
  for (let number = 2; names.has(unique); number++) {
    unique = `${name} ${number}`;
  }
  const keys = Object.entries(more).filter(([key, value]) => !key.startsWith("__") && value !== undefined);
  const saved = { type, request, name: unique, program: `\${workspaceFolder}/${inside.replaceAll("\\", "/")}`, ...Object.fromEntries(keys) };
  await settings.update("configurations", [...existing, saved], vscode.ConfigurationTarget.WorkspaceFolder);
  const file = vscode.Uri.joinPath(folder.uri, ".vscode", "launch.json");
  await vscode.window.showTextDocument(file, { viewColumn: vscode.ViewColumn.Beside });
}
