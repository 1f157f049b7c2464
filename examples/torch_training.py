"""Train an encoder so that two views of the same point are close.  The loss is NaN from step 5 on.

python examples/torch_training.py
nncdbg record examples/torch_training.py --step 4 -o step4
nncdbg watch step4
nncdbg step4
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(points)))


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).square().sum(dim=-1).sqrt()


encoder = Encoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)

for step in range(1, 7):
    view = torch.randn(16, 4)
    other_view = view + 0.1 * torch.randn(16, 4)
    if step == 4:
        other_view[5] = view[5]  # A duplicate in the data.
    loss = distance(encoder(view), encoder(other_view)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
