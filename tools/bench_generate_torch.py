#!/usr/bin/env python3
"""The PyTorch side of tools/bench.py --generate: transformers' generate(), random weights in bf16.

    python3 tools/bench_generate_torch.py --model FOLDER --batch 64 --prompt 128 --new 256 [--beams 5] [--best]

FOLDER has the config.json of a LLaMA, or of a BLIP-2, whose pictures are random numbers. Greedy, or beams; all texts get the
same number of new tokens. --best: a static cache and torch.compile, as transformers' guide to faster generation has it. The
last line is RESULT and a JSON object: texts_s, step_ms (a token of all texts), seconds; of the fastest of three calls after
one that warms up.
"""
import argparse
import json
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--batch", type=int, required=True)
    add("--prompt", type=int, required=True)
    add("--new", type=int, required=True)
    add("--beams", type=int, default=1)
    add("--best", action="store_true")
    arguments = parser.parse_args()
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    inputs = {}
    with torch.device("cuda"):
        if config.model_type == "blip-2":
            model = transformers.Blip2ForConditionalGeneration(config)
            size = config.vision_config.image_size
            inputs["pixel_values"] = torch.randn(arguments.batch, 3, size, size)
            ids = torch.full((arguments.batch, config.num_query_tokens + 1), config.image_token_index)
            ids[:, -1] = config.text_config.bos_token_id or 2
        else:
            model = transformers.AutoModelForCausalLM.from_config(config)
            ids = torch.randint(3, config.vocab_size, (arguments.batch, arguments.prompt))
    model = model.to(torch.bfloat16).eval()
    options = dict(max_new_tokens=arguments.new, min_new_tokens=arguments.new, do_sample=False, num_beams=arguments.beams,
                   pad_token_id=1)
    if arguments.best:
        options["cache_implementation"] = "static"
    times = []
    with torch.no_grad():
        for _ in range(4):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, **options)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    seconds = min(times[1:])
    print("RESULT " + json.dumps(dict(texts_s=arguments.batch / seconds, step_ms=seconds / arguments.new * 1e3, seconds=seconds,
                                      first_s=times[0], torch=torch.__version__, transformers=transformers.__version__)))


if __name__ == "__main__":
    main()
