"""Scores of published tools for odd texts and random sets, for test/evaluate.

Needs pycocoevalcap 1.2 with Java (tokenizer, CIDEr, BLEU, ROUGE-L) and lm-eval 0.4.13 (choices, perplexities); a tool
that this Python lacks is named, and its file is left as it is. vqaEval.py is the official VQA script of GitHub's
GT-Vision-Lab/VQA (a013f00), vqa_eval.py the earlier version that salesforce-lavis 1.0.2 ships (lavis/common/vqa_tools),
squad_metrics.py that of transformers 4.57 (data/metrics).
"""
import contextlib
import importlib.util
import io
import json
import os
import random
import re
import types

PIECES = """dog's isn't can't won't I'm they're cats' 90's cannot gonna wanna gotta lemme gimme
'tis 'twas y'all y'know o'clock
top-of black-and-white cat/dog photo_of and/or 1/2 3.5 1,000 1,000,000.50 10:30 mid-1990s 3rd U.S. u.s. a.m. p.m.
St. world.A http://a.b/c?d=1 https://example.org/x. www.example.com example.com me@example.org <me@example.org>
$4.50 US$5 50% #1 #tag #tag_1 @me "hi" 'hi' ``a'' “b” ‘c’ «d» – — … ... .. .... ...... (a) [b] {c} a. A. I. Mr. Mrs.
Dr. etc. e.g. i.e. vs. No. no. 5 Inc. Jan. Co. Ltd. 1⁄2 ½ 2½ ¼ ⅔ 555-1234 (555) 555-555-1234 +1 800 AT&T R&B M&M's
&amp; &lt;b&gt; &nbsp; &mdash; &#39; <b> </b> <br/> <a href="x"> < > << >> <3 :) :-( ;D =] ^_^ (^_^) -5 +5 -- ---
---- - 5-6 2014-01-02 1/2/2003 é naïve café 日本語 привет 😀 👍🏽 ❤️ ★ → © € £5 ¢ ¥100 ° °C 5° m² H₂O 10¹² ! ? !? !!! , ;
: . * ** _ __ ~ ` ^ | \\ / // % & + = == === C++ c# 'n' rock'n'roll ol' 'em 'cause d'Or O'Brien l'eau J' 's 'd 'll
n't don't've shouldn't've c'mon e'er 20's '20s '90 DON'T It'S don’t it’s THE The A I a the man woman red bench Ph.D.
Ph.D Jr. Sr. U.S U.S.-U.K. non-U.S. F-16 B.C. x-ray T-shirt 3-D 4x4 6'2" 5ft 5ft. ft. in. oz. Ave. Blvd. Rd. Mt.
est. fig. Fig. ca. pp. op. art. bldg. Wash. Miss. Mass. La. Pa. Tex. Ill. v. cf. al. seq. sq. tel. Prof. Sen. Gen.
Capt. Lt. Rev. Esq. Sept. may. sun. mon. etc St Mr photo.jpg 3.mp4 a.py file_1.txt co\u00adop x\u200by -LRB- foo!bar
what?no 3.5mm a1b2 a--b İstanbul ΟΔΟΣ pro- anti- Dunkin' somethin' y' 'till""".split()

CAPTIONS = [
    "A man riding a wave on top of a surfboard.",
    "Two dogs' toys lie on the couple's bed",
    "A close-up of a cat's face -- it's asleep!",
    "a sign that says \"STOP\" near 5th Ave. and Main St.",
    "The woman (in red) isn't looking at the camera...",
    "An old black-and-white photo of the U.S. Capitol, ca. 1900",
    "There are 3 zebras, 2 giraffes & 1 elephant in the field",
    "A clock tower showing 10:30 a.m. on a cloudy day .",
    "a bathroom with a toilet, a sink; and a mirror",
    "A half-eaten pizza w/ pepperoni, 1/2 of it's gone",
    "  two   spaces  and a tab\tin here ",
    "",
    ".",
    "...",
    "I can't believe it's not butter",
    "The bus reads: 'Not In Service'",
    "A 1950's style diner at 5 o'clock",
    "this photo cost $4.50, i.e. 50% off",
    "Man in a \u201cbig\u201d hat \u2014 he\u2019s smiling",
    "people at Mt. Fuji in Japan (\u65e5\u672c)",
    "Line one\nline two",
    "a dog. A cat. The bird",
    "A boy's up at bat while the catcher's ready",
    "Someone has cut a 1 1/2 inch slice",
    "call (555) 555-1234 for pizza",
    "This is building A. The door is open.",
    "A jet F-16 flying over Wash. D.C.",
    "men's and women's restrooms",
    "rock 'n' roll band on stage",
]


def odd_texts(count, seed):
    rng = random.Random(seed)
    gaps = [" "] * 6 + ["", "", "  ", ". ", ", ", "-", "/", "'", ".", "’", "_", "\t", "\u00a0", ": ", "! "]
    texts = list(CAPTIONS)
    while len(texts) < count:
        text = "".join(rng.choice(PIECES) + rng.choice(gaps) for _ in range(rng.randint(1, 7)))
        texts.append(text)
    return texts


def tokenizer():
    from pycocoevalcap.tokenizer import ptbtokenizer
    made = ptbtokenizer.PTBTokenizer()

    def words(texts):
        """Each text before a line that begins with a small letter: some rules look at the next line."""
        captions = {}
        for number, text in enumerate(texts):
            captions[2 * number] = [{"caption": text}]
            captions[2 * number + 1] = [{"caption": "zz"}]
        found = made.tokenize(captions)
        assert all(found[2 * n + 1] == ["zz"] for n in range(len(texts)))
        return [found[2 * n][0] for n in range(len(texts))]

    return words


def caption_set(rng, images, words):
    """[candidate, references] of each image, as words with blanks between."""
    def text(longest):
        return " ".join(rng.choice(words) for _ in range(rng.randint(0, longest)))
    captions = []
    for _ in range(images):
        references = [text(14) for _ in range(rng.randint(1, 9))]
        kind = rng.random()
        if kind < 0.15:
            candidate = ""
        elif kind < 0.4:
            candidate = rng.choice(references)
        elif kind < 0.6:
            candidate = rng.choice(references) + " " + text(4)
        elif kind < 0.7:
            candidate = " ".join([rng.choice(words)] * rng.randint(2, 9))
        else:
            candidate = text(16)
        captions.append([" ".join(candidate.split(" ")).strip(" "), references])
    return captions


def caption_scores(captions):
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    references = {n: refs for n, (_, refs) in enumerate(captions)}
    candidates = {n: [candidate] for n, (candidate, _) in enumerate(captions)}
    with contextlib.redirect_stdout(io.StringIO()):
        cider, cider_each = Cider().compute_score(references, candidates)
        rouge, rouge_each = Rouge().compute_score(references, candidates)
        bleu, bleu_each = Bleu(4).compute_score(references, candidates, verbose=0)
    scores = {"cider": [float(cider), list(map(float, cider_each))],
              "rouge_l": [float(rouge), list(map(float, rouge_each))]}
    for k in range(4):
        scores[f"bleu{k + 1}"] = [float(bleu[k]), list(map(float, bleu_each[k]))]
    return {"captions": captions, "scores": scores}


def caption_sets():
    rng = random.Random(20)
    few = ["a", "man", "dog", "on", "red"]
    many = few + [f"w{n}" for n in range(60)] + ["n't", "'s", "1\u00a01/2", "-lrb-", "naïve"]
    sets = [caption_set(rng, images, words) for images, words in
            [(1, few), (1, many), (2, few), (3, many), (7, few), (20, many), (25, few)]]
    sets.append([["", ["", "a man"]], ["a man", [""]], ["", [""]]])
    return [caption_scores(captions) for captions in sets]


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def vqa_accuracy(module, said, given):
    answers = [{"answer": a, "answer_id": n} for n, a in enumerate(given)]
    truth = {1: {"answers": answers, "question_type": "", "answer_type": ""}}
    one = module.VQAEval(types.SimpleNamespace(qa=truth, getQuesIds=lambda: [1]),
                         types.SimpleNamespace(qa={1: {"answer": said}}), n=17)
    with contextlib.redirect_stdout(io.StringIO()):
        one.evaluate()
    return one.evalQA[1] / 100


def vqa(official_path, lavis_path):
    rng = random.Random(30)
    official, module = load(official_path, "vqaEval"), load(lavis_path, "vqa_eval")
    pieces = ["yes", "no", "a", "an", "the", "The", "two", "Two", "2", "none", "zero", "ten", "dont", "DONT",
              "isnt", "im", "red/blue", "red, blue", "1,000", "2.5", "3.", ".5", "U.S.", "left-hand", "can't",
              "cant", "it's", "somebody'd", "yall", "what's that?", "(both)", "[x]", "\"quoted\"", "semi;colon",
              "a;b", "new\nline", "tab\there", " ", "", "-", "--", "50%", "$5", "5:30", "\\", "x_y", "a@b",
              "...", "." * 40, "é", "٣", "٣,٤", "oclock", "wont", "she's", "let's", "twas", "`", "{y}", "a+b",
              "=", "<>"]
    answers, cases = [], []
    for _ in range(60):
        some = [rng.choice(pieces) for _ in range(rng.randint(1, 4))]
        answers.append(rng.choice([" ", "", ", ", "/", " ; "]).join(some))
    answers += pieces + list(module.VQAEval().contractions)
    evaluator = module.VQAEval()
    normalized = []
    for answer in answers:
        plain = evaluator.processPunctuation(answer.replace("\n", " ").replace("\t", " ").strip())
        normalized.append([answer, evaluator.processDigitArticle(plain), evaluator.processPunctuation(answer)])
    for _ in range(150):
        pool = [rng.choice(answers) for _ in range(rng.randint(1, 3))]
        given = [rng.choice(pool) for _ in range(rng.choice([10, 10, 10, 2, 3, 5]))]
        said = rng.choice(pool + [rng.choice(answers)])
        cases.append([said, given])
    scored = [[said, given, vqa_accuracy(official, said, given), vqa_accuracy(module, said, given)] for said, given in cases]
    return {"normalized": normalized, "cases": scored}


def squad(path):
    with open(path) as file:  # a part of a package; what it takes from there is logging alone
        source = re.sub(r"^from \.+.*\n", "", file.read(), flags=re.M)
    source = "import logging\n" + source.replace("logging.get_logger", "logging.getLogger")
    module = types.ModuleType("squad_metrics")
    exec(compile(source, path, "exec"), module.__dict__)
    rng = random.Random(40)
    pieces = ["the", "The", "a", "an", "cat", "Cat's", "cats", "dog,", "(dog)", "1.5", "a-b", "the-end",
              "theme", "--", "", "É", "“x”", "x.",
              "an apple"]
    cases = []
    for _ in range(150):
        text = lambda: " ".join(rng.choice(pieces) for _ in range(rng.randint(0, 6)))
        references = [text() for _ in range(rng.randint(1, 4))]
        said = rng.choice([text(), rng.choice(references), rng.choice(references).lower() + " cat"])
        cases.append([said, references, max(module.compute_exact(r, said) for r in references),
                      max(module.compute_f1(r, said) for r in references)])
    return cases


def lm_eval_numbers():
    from lm_eval.api import metrics as lm
    from lm_eval.api.task import ConfigurableTask, PerplexityTask
    rng = random.Random(50)
    wanted = {"acc": None, "acc_norm": None, "acc_bytes": None}
    questions, values = [], {name: [] for name in wanted}
    for _ in range(60):
        choices = [rng.choice(["yes", "no", "é" * rng.randint(1, 5), "a longer answer", "日本語",
                               "x" * rng.randint(1, 30)])
                   for _ in range(rng.randint(2, 5))]
        sums = [rng.choice([-rng.random() * 30, -float(len(c)), -float(len(c.encode()))]) for c in choices]
        gold = rng.randrange(len(choices))
        task = types.SimpleNamespace(config=types.SimpleNamespace(process_results=None), OUTPUT_TYPE="multiple_choice",
                                     _metric_fn_list=wanted, multiple_input=0, multiple_target=0,
                                     doc_to_choice=lambda doc, c=choices: c, doc_to_target=lambda doc, g=gold: g)
        result = ConfigurableTask.process_results(task, {}, [(s, False) for s in sums])
        for name in wanted:
            values[name].append(float(result[name]))
        questions.append([choices, sums, gold])
    scores = {name: [lm.mean(each), lm.mean_stderr(each), each] for name, each in values.items()}
    texts = ["", " ", "one", "two words", " lead and trail ", "a\n\nb\tc", "é 日本\u3000語", "x\u00a0y", "a\x1cb",
             "no-break\u202fspace\u2029"]
    losses = [[t, -rng.random() * 50] for t in texts]
    words = [[ll, PerplexityTask.count_words(t)] for t, ll in losses]
    lengths = [[ll, PerplexityTask.count_bytes(t)] for t, ll in losses]
    perplexities = {"word_perplexity": lm.weighted_perplexity(words),
                    "byte_perplexity": lm.weighted_perplexity(lengths),
                    "bits_per_byte": lm.bits_per_byte(lengths)}
    texts = [[t, ll, w, b] for (t, ll), (_, w), (_, b) in zip(losses, words, lengths)]
    return {"questions": questions, "scores": scores, "losses": texts, "perplexities": perplexities}


def in_lines(content, depth=2):
    """JSON with one item a line, so that small changes stay small."""
    if depth and isinstance(content, list):
        return "[\n" + ",\n".join(in_lines(item, depth - 2) for item in content) + "\n]"
    if depth and isinstance(content, dict):
        items = [json.dumps(key) + ": " + in_lines(item, depth - 1) for key, item in content.items()]
        return "{\n" + ",\n".join(items) + "\n}"
    return json.dumps(content)


def make(folder, options):
    def write(name, make):
        try:
            content = make()
        except ImportError as missing:
            print(f"{name}: left as it is: {missing}")
            return
        with open(os.path.join(folder, name), "w") as out:
            out.write(in_lines(content) + "\n")
        print(f"{name}: {os.path.getsize(os.path.join(folder, name))} bytes")

    def ptb():
        texts = odd_texts(900, 10)
        return [[text, words] for text, words in zip(texts, tokenizer()(texts))]

    write("ptb.json", ptb)
    write("captions.json", caption_sets)
    if options.vqa_eval and options.lavis:
        write("vqa.json", lambda: vqa(options.vqa_eval, options.lavis))
    if options.squad:
        write("squad.json", lambda: squad(options.squad))
    write("lm_eval.json", lm_eval_numbers)
