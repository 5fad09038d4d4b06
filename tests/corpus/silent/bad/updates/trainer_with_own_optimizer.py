"""A Trainer is given an optimizer made before the model got embeddings of more positions.

finding: optimizer-holds-other-tensors | model/transformer/wpe/weight | sure | step 2
slow: imports transformers
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # here
model.transformer.wpe = torch.nn.Embedding(24, 16)
rows = [{"input_ids": each, "labels": each} for each in torch.randint(0, 50, (64, 10))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=14,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()
