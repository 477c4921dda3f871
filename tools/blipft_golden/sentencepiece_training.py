"""Trains a small SentencePiece model."""
import os
import tempfile

import sentencepiece


def train(text, rules, **options):
    """Returns the bytes of a tokenizer.model. `rules` of the normalizer: {code points: replacement}, both
    hexadecimal and separated by blanks."""
    with tempfile.TemporaryDirectory() as folder:
        rule_file, text_file = os.path.join(folder, "rules.tsv"), os.path.join(folder, "text.txt")
        with open(rule_file, "w", encoding="ascii") as out:
            out.writelines(f"{codes}\t{to}\n" for codes, to in rules.items())
        with open(text_file, "w", encoding="utf-8") as out:
            out.write(text)
        sentencepiece.SentencePieceTrainer.train(
            input=text_file, model_prefix=os.path.join(folder, "m"), normalization_rule_tsv=rule_file, num_threads=1,
            minloglevel=2, **options)
        with open(os.path.join(folder, "m.model"), "rb") as model:
            return model.read()
