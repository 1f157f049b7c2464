// What VS Code knows of nncdbg: the server is a Python process, started or connected to from here.

import * as vscode from "vscode";
import { adapterDescriptor } from "./adapter";
import { Configurations } from "./configurations";

const TYPE = "nncdbg";

export function activate(context: vscode.ExtensionContext): void {
  context.subscriptions.push(
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, { createDebugAdapterDescriptor: adapterDescriptor }),
    vscode.debug.registerDebugConfigurationProvider(TYPE, new Configurations()),
    vscode.debug.registerDebugConfigurationProvider(
      TYPE,
      new Configurations(),
      vscode.DebugConfigurationProviderTriggerKind.Dynamic,
    ),
  );
}
