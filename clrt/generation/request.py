"""Checks the options and prompts of a generator's calls and creates generation states."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from threading import RLock
from typing import Any, TypedDict

from clrt.errors import InputError, UnsupportedError
from clrt.generation.beams import BeamSearch
from clrt.generation.constraints import Constraint, ConstraintTokens
from clrt.generation.forced_decoding import ForcedSequence
from clrt.generation.generation_state import GenerationState
from clrt.generation.model_spec import LanguageModel
from clrt.generation.options import Sampling
from clrt.generation.prompts import ChatFormat, several, tokens_of
from clrt.generation.scheduler import Scheduler
from clrt.generation.token_rules import new_tokens_limit
from clrt.generation.tool_calls import ExpectedCalls
from clrt.util.fast_dataclass import dataclass

_RULES = ("json_schema", "regex", "grammar")
_OTHER_OPTIONS = ("sampling", "tools", "template_variables")
_MULTIPLE_RESULTS = ("num_return_sequences", "num_beams")
# Options that beam search does not support: it ranks by log-probability alone.
_NOT_FOR_BEAMS = (
    *("temperature", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "stop", "lookup_tokens"),
)
# Names of options in transformers, which are accepted too.
_TRANSFORMERS_NAMES = {
    "prompt_lookup_num_tokens": "lookup_tokens",
    "num_assistant_tokens": "draft_tokens",
}


class GenerateOptions(TypedDict, total=False):
    """Options of `generate`, `stream` and `chat`: the fields of `Sampling` and these attributes.

    Attributes:
        sampling: Options to use instead of the options in the model's files. Options that are
            passed one by one override this.
        tools: JSON schemas of functions that the model may call, for the chat template; parsed
            calls are in `tool_calls` of the result.
        template_variables: Values of other variables of the chat template, such as
            `{"enable_thinking": False}`.
        json_schema: JSON schema that the text must match, or a pydantic model class.
        regex: Regular expression that the text must match, in the syntax of Rust's crate regex.
        grammar: Grammar that the text must match, in Lark or GBNF syntax.
    """

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: str | Sequence[str]
    seed: int | None
    logit_bias: Mapping[int, float]
    num_return_sequences: int
    num_beams: int
    logprobs: int
    include_stop: bool
    lookup_tokens: int
    draft_tokens: int
    max_length: int
    min_length: int
    min_new_tokens: int
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    sequence_bias: Sequence[tuple[Sequence[int], float]] | Mapping[tuple[int, ...], float]
    length_penalty: float
    early_stopping: bool | str
    renormalize_logits: bool
    sampling: Sampling | None
    tools: Sequence[Mapping[str, Any]] | None
    template_variables: Mapping[str, Any] | None
    json_schema: object
    regex: str | None
    grammar: str | None


@dataclass(frozen=True)
class GenerateRequest:
    """Checked options of a call of `generate`, `stream` or `chat`, without the prompt.

    Attributes:
        sampling: Sampling options.
        chat: Tools and variables of the chat template.
        rule: Keyword argument of `Constraint`, such as `regex`; {} for no constraint.
    """

    sampling: Sampling
    chat: ChatFormat = field(default_factory=ChatFormat)
    rule: Mapping[str, Any] = field(default_factory=dict)


class RequestReader:
    """Checks options and prompts of a text generator's calls, and creates generation states.

    Args:
        model: The language model.
        drafts: Whether there is a draft model.
    """

    def __init__(self, model: LanguageModel, drafts: bool = False) -> None:
        self._model = model
        self._drafts = drafts
        self._constraint_tokens: ConstraintTokens | None = None
        self._making = RLock()

    def read(self, options: Mapping[str, Any], method: str = "generate") -> GenerateRequest:
        """Returns the checked options of a call; missing options come from the model's files.

        Args:
            options: Options by name, as in `GenerateOptions`.
            method: Name of the called method; all but `generate` return one text without beams.

        Raises:
            InputError: An option is unknown, has no valid value, or does not apply to `method`.
            UnsupportedError: The model's files require a feature that clrt does not support.
        """
        options = {_TRANSFORMERS_NAMES.get(name, name): value for name, value in options.items()}
        known = [f.name for f in fields(Sampling)]
        for name in options:
            if name not in (*known, *_RULES, *_OTHER_OPTIONS):
                raise _unknown_option(name, [*known, *_RULES, *_OTHER_OPTIONS])
        overrides = {name: options[name] for name in known if name in options}
        rule = {name: options[name] for name in _RULES if options.get(name) is not None}
        variables = options.get("template_variables") or {}
        if not isinstance(variables, Mapping):
            raise InputError(f"template_variables is {variables!r}; expected a mapping by name.")
        base = options.get("sampling") or self._proposed_options(overrides, rule, method)
        if not isinstance(base, Sampling):
            raise InputError(f"sampling is {base!r}; expected a clrt.Sampling.")
        sampling = replace(base, **overrides)
        drafted = ["draft_tokens"] if overrides.get("draft_tokens") else []
        if drafted and not self._drafts:
            raise InputError(
                "draft_tokens needs a draft model; create the generator with `draft=`, or use "
                "lookup_tokens."
            )
        last = max(sampling.logit_bias, default=0)
        if last >= self._model.vocabulary:
            raise InputError(
                f"logit_bias has the token {last}; the model has tokens 0 to "
                f"{self._model.vocabulary - 1}."
            )
        if sampling.num_beams > 1:
            _check_beams(sampling, [*rule, *drafted])
        if method != "generate":
            for name in _MULTIPLE_RESULTS:
                if getattr(sampling, name) > 1:
                    raise InputError(f"{name} is for `generate`; `{method}` returns one text.")
        return GenerateRequest(sampling, ChatFormat(options.get("tools"), variables), rule)

    def _proposed_options(self, given: Mapping[str, Any], rule: object, method: str) -> Sampling:
        """Returns the sampling options of the model's files, as the defaults of a call.

        Options of the files that do not go with the call's options or method are switched off: beam
        search, for example, if the call has a rule.

        Args:
            given: Fields of `Sampling` that the call sets, by name.
            rule: The call's json_schema, regex or grammar, by option name; {} for none.
            method: Name of the called method.

        Raises:
            UnsupportedError: The model's files require a feature that clrt does not support, or
                combine beam search with options that exclude it.
        """
        if self._model.refusal:
            raise UnsupportedError(self._model.refusal)
        proposed, plain = self._model.sampling, Sampling()
        if "max_new_tokens" in given:
            proposed = replace(proposed, max_length=0)
        if method != "generate" or rule or given.keys() & {*_NOT_FOR_BEAMS, "draft_tokens"}:
            proposed = replace(proposed, num_beams=1)
        if method != "generate":
            proposed = replace(proposed, num_return_sequences=1)
        beams = given.get("num_beams", proposed.num_beams)
        if proposed.num_beams > 1 and "num_beams" not in given:
            _check_proposed_beams(proposed)
        if isinstance(beams, int) and beams > 1:
            proposed = replace(proposed, **{n: getattr(plain, n) for n in _NOT_FOR_BEAMS})
        return proposed

    def prompts(self, prompt: object, request: GenerateRequest) -> list[list[int]]:
        """Returns the tokens of one prompt, in a list, or of each prompt of a list of prompts.

        Args:
            prompt: A string, tokens or the messages of a chat; or a list of these.
            request: Options of the call, with tools and variables of the chat template.

        Raises:
            InputError: A prompt is invalid.
            ModelError: The chat template is invalid or exceeds its budget.
            UnsupportedError: Jinja is not installed.
        """
        each = several(prompt)
        return [tokens_of(self._model, p, request.chat) for p in (each or [prompt])]

    def continued(self, prompt: object, what: str) -> list[int]:
        """Returns the tokens of a prompt for a method that needs a decoder-only model.

        Args:
            prompt: A string, tokens, or the messages of a chat.
            what: Name of the method, for the error message.

        Raises:
            InputError: The prompt is invalid.
            ModelError: The chat template exceeds its budget.
            UnsupportedError: The model has an encoder, or Jinja is not installed.
        """
        self._model.check_decoder(what)
        return tokens_of(self._model, prompt)

    def texts(self, texts: object, sources: object) -> list[ForcedSequence]:
        """Returns the token sequences of texts for forced decoding, each with its encoder input.

        Args:
            texts: One prompt or several.
            sources: Prompts that the encoder reads: one prompt for all texts, or a list of one for
                each text; None for a decoder-only model.

        Raises:
            InputError: A text or source is invalid, or `sources` does not fit the model or the
                number of texts.
            ModelError: The chat template is invalid or exceeds its budget.
            UnsupportedError: Jinja is not installed.
        """
        model, plain = self._model, GenerateRequest(self._model.sampling)
        token_lists = self.prompts(texts, plain)
        if model.decoder.encoder is None:
            if sources is not None:
                raise InputError(f"The model '{model.name}' has no encoder; leave out sources.")
            return [ForcedSequence(tokens, 0) for tokens in token_lists]
        if sources is None:
            raise InputError(
                f"The model '{model.name}' has an encoder; give its inputs as sources."
            )
        inputs = [model.begin(tokens) for tokens in self.prompts(sources, plain)]
        if several(sources) is None:
            inputs *= len(token_lists)
        if len(inputs) != len(token_lists):
            raise InputError(
                f"There are {len(inputs)} sources for {len(token_lists)} texts; give one for all, "
                "or one for each."
            )
        pairs = zip(token_lists, inputs, strict=True)
        return [ForcedSequence([*s, *tokens], len(s) - 1, source) for tokens, (s, source) in pairs]

    def searches(
        self, scheduler: Scheduler, prompts: Sequence[Sequence[int]], request: GenerateRequest
    ) -> list[BeamSearch]:
        """Creates a beam search for each prompt, without starting it.

        Args:
            scheduler: Scheduler of the model.
            prompts: Tokens of each prompt.
            request: Options of the call.

        Raises:
            InputError: A prompt is too long.
        """
        search_args, calls = (scheduler, self._model), self.calls(request)
        return [BeamSearch.of(*search_args, tokens, request.sampling, calls) for tokens in prompts]

    def answers(self, tokens: Sequence[int], request: GenerateRequest) -> list[GenerationState]:
        """Creates `num_return_sequences` generation states for one prompt.

        Args:
            tokens: Tokens of the prompt.
            request: Options of the call.

        Raises:
            InputError: A constraint is not valid, or the prompt is longer than the context or
                `max_length`.
            UnsupportedError: llguidance is not installed, or cannot use the model's tokens.
        """
        model, sampling = self._model, request.sampling
        prompt, source = model.begin(tokens)
        rule = Constraint(self._tokens(), **request.rule) if request.rule else None
        calls = self.calls(request)
        return [
            GenerationState.of(
                prompt,
                sampling,
                model.vocabulary,
                model.ends,
                model.tokenizer,
                new_tokens_limit(sampling, len(prompt), model.context),
                None if rule is None else rule.copy(),
                number,
                calls,
                source,
            )
            for number in range(sampling.num_return_sequences)
        ]

    def calls(self, request: GenerateRequest) -> ExpectedCalls | None:
        """Returns the format and tools of tool calls to parse.

        None if the request has no tools, or if the model's call format is unknown.
        """
        tools, call_format = request.chat.tools, None
        if tools:
            call_format = self._model.call_format
        return None if not tools or call_format is None else ExpectedCalls.of(call_format, tools)

    def _tokens(self) -> ConstraintTokens:
        """Returns the model's vocabulary for constraints, created at the first call.

        Raises:
            InputError: The model has no end token.
        """
        with self._making:
            if self._constraint_tokens is None:
                model = self._model
                if not model.ends:
                    raise InputError(
                        f"The model '{model.name}' has no token that ends a text, which a "
                        "constraint needs; give its generation_config.json an eos_token_id."
                    )
                self._constraint_tokens = ConstraintTokens(
                    model.tokenizer, sorted(model.ends), model.vocabulary
                )
            return self._constraint_tokens


def _check_beams(sampling: Sampling, more: Sequence[str]) -> None:
    """Checks that a call uses no option that is incompatible with beam search.

    Args:
        sampling: Sampling options of the call.
        more: Names of other incompatible options that the call uses.

    Raises:
        InputError: The call uses an incompatible option.
    """
    plain = Sampling()
    wrong = [n for n in _NOT_FOR_BEAMS if getattr(sampling, n) != getattr(plain, n)]
    if wrong or more:
        raise InputError(
            f"num_beams does not go with {[*wrong, *more][0]}: beam search returns the likeliest "
            "texts; leave one of them out."
        )


def _check_proposed_beams(proposed: Sampling) -> None:
    """Checks that the model's files set no option that is incompatible with beam search.

    Raises:
        UnsupportedError: The files set an incompatible option.
    """
    plain = Sampling()
    wrong = [n for n in _NOT_FOR_BEAMS if getattr(proposed, n) != getattr(plain, n)]
    if wrong:
        name = "do_sample" if wrong[0] == "temperature" else wrong[0]
        raise UnsupportedError(
            f"The model's generation_config.json asks for {name} with num_beams "
            f"{proposed.num_beams}, which clrt does not do together; give num_beams=1, or "
            "`sampling=clrt.Sampling(...)` to choose in its place."
        )


def _unknown_option(name: str, known: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    return InputError(f"There is no option {name!r}; {hint}")
