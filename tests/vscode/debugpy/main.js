const vscode = require("vscode");

exports.activate = (context) => {
  const createDebugAdapterDescriptor = () => {
    const python = vscode.workspace.getConfiguration("nncdbg").get("python");
    return new vscode.DebugAdapterExecutable(python, ["-m", "debugpy.adapter"]);
  };
  context.subscriptions.push(vscode.debug.registerDebugAdapterDescriptorFactory("debugpy", { createDebugAdapterDescriptor }));
};
