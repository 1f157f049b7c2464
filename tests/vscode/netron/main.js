const vscode = require("vscode");

exports.activate = (context) => {
  const opened = [];
  context.subscriptions.push(vscode.commands.registerCommand("vscode-netron.open", (uri) => opened.push(uri.fsPath)));
  return { opened };
};
