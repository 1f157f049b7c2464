// "Run with": a form for the inputs, sizes, backend and seed of a model.  What was entered is kept per model.

import * as path from "node:path";
import * as vscode from "vscode";
import { documentOf } from "../pages/page";
import { run } from "../environment/python";
import { type Choices, choicesOf, type FromForm, IMAGES, launchKeys, type Signature, type ToForm } from "./fields";

const PRINT = ["-m", "nncdbg.terminal.main", "print", "--json"];

interface Manifest {
  contributes: { debuggers: { configurationAttributes: { launch: { properties: { backend: { enum: string[] } } } } }[] };
}

export class RunForm {
  private panel: vscode.WebviewPanel | undefined;
  private configuration: vscode.DebugConfiguration | undefined;
  private folder: vscode.WorkspaceFolder | undefined;
  private shown: ToForm | undefined;

  constructor(private readonly context: vscode.ExtensionContext) {}

  /** Shows the form for a launch; `words` say why an earlier one has failed.  Throws where the model cannot be read. */
  async open(configuration: vscode.DebugConfiguration, python: string, words = ""): Promise<void> {
    const { program } = configuration;
    this.folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(program));
    const signature = await this.signature(configuration, python);
    this.configuration = configuration;
    const model = { ...signature, title: path.basename(program), backends: this.backends() };
    this.shown = { kind: "show", model, choices: this.choices(configuration), words: inForm(words) };
    await this.reveal(`Run ${model.title} with`, this.shown);
  }

  private async signature({ program, flat, allowStores = [], cwd }: vscode.DebugConfiguration, python: string): Promise<Signature> {
    const stores = (allowStores as string[]).flatMap((each) => ["--allow-store", each]);
    try {
      const { stdout } = await run(python, [...PRINT, ...(flat ? ["--flat"] : []), ...stores, program], cwd ?? this.folder?.uri.fsPath);
      return JSON.parse(stdout) as Signature;
    } catch (error) {
      throw new Error((error as { stderr?: string }).stderr?.trim() || (error as Error).message);
    }
  }

  /** Those that the manifest offers. */
  private backends(): string[] {
    const [debugger_] = (this.context.extension.packageJSON as Manifest).contributes.debuggers;
    return debugger_.configurationAttributes.launch.properties.backend.enum;
  }

  /** What the configuration has goes before what was entered the last time. */
  private choices(configuration: vscode.DebugConfiguration): Choices {
    const last = this.context.workspaceState.get<Choices>(keyOf(configuration.program));
    const now = choicesOf(configuration);
    return {
      inputs: { ...last?.inputs, ...now.inputs },
      dims: { ...last?.dims, ...now.dims },
      backend: now.backend || last?.backend || "",
      seed: now.seed || last?.seed || "",
    };
  }

  /** A page that comes anew asks for what it shows. */
  private async reveal(title: string, shown: ToForm): Promise<void> {
    if (this.panel) {
      this.panel.title = title;
      this.panel.reveal();
      this.tell(shown);
      return;
    }
    const options = { enableScripts: true, localResourceRoots: [], retainContextWhenHidden: true };
    this.panel = vscode.window.createWebviewPanel("nncdbg.run", title, vscode.ViewColumn.Active, options);
    this.panel.iconPath = vscode.Uri.joinPath(this.context.extensionUri, "media", "nnc-dark.svg");
    this.panel.onDidDispose(() => (this.panel = undefined));
    this.panel.webview.onDidReceiveMessage((message: FromForm) => void this.hear(message));
    this.panel.webview.html = await documentOf(this.context.extensionUri, "runForm", "Run with");
  }

  private tell(message: ToForm): void {
    void this.panel?.webview.postMessage(message);
  }

  private async hear(message: FromForm): Promise<void> {
    if (message.kind === "ready" && this.shown) {
      this.tell(this.shown);
    } else if (message.kind === "choose") {
      await this.chooseFile(message.input);
    } else if (message.kind === "start") {
      await this.start(message.choices);
    }
  }

  private async chooseFile(input: string): Promise<void> {
    const model = vscode.Uri.file(path.dirname(this.configuration?.program));
    const filters = { "Arrays and images": ["npy", "npz", ...IMAGES], "NumPy arrays": ["npy", "npz"], Images: IMAGES };
    const [file] = (await vscode.window.showOpenDialog({ title: `Data for %${input}`, defaultUri: model, filters })) ?? [];
    if (file) {
      this.tell({ kind: "file", input, file: file.fsPath });
    }
  }

  /** The form goes when the session has begun; it comes again, with the reason, where it cannot. */
  private async start(choices: Choices): Promise<void> {
    const { configuration, folder } = this;
    if (!configuration) {
      return;
    }
    await this.context.workspaceState.update(keyOf(configuration.program), choices);
    let keys: object;
    try {
      keys = launchKeys(choices);
    } catch (error) {
      this.refuse(choices, (error as Error).message);
      return;
    }
    this.panel?.dispose();
    await vscode.debug.startDebugging(folder, { ...configuration, ...keys, __form: true });
  }

  private refuse(choices: Choices, words: string): void {
    if (this.shown?.kind === "show") {
      this.shown = { ...this.shown, choices, words };
      this.tell(this.shown);
    }
  }

  dispose(): void {
    this.panel?.dispose();
  }
}

/** Without hints about the command line: the form has fields in their place. */
const inForm = (words: string): string => words.replace(/\n *hint: .*--.*/g, "\nChoose a file below, or generated values with sizes.");

const keyOf = (program: string): string => `run ${program}`;
