# SPDX-License-Identifier: Apache-2.0
"""All that is replaced in Thunder, one row each: why, since when, and the function that does it.

Imported for a version of Thunder that is known: the rows import names that others may lack.
"""

from __future__ import annotations

from thunder_fuser.thunder_patches import (
    bound_symbols,
    garbage,
    gradient_rules,
    hooks,
    interpreter,
    limits,
    passes,
    tied_parameters,
)
from thunder_fuser.thunder_patches.fixes import (
    arguments,
    attributes,
    autograd,
    complex_gradients,
    modules,
    promotion,
    reads,
    replaced_parts,
    shared_arguments,
    thread_state,
)
from thunder_fuser.thunder_patches.interpreter_helpers import READ
from thunder_fuser.thunder_patches.patch import Patch

_INTERPRETER = "thunder.core.interpreter"
_LOOKASIDES = "thunder.core.jit_ext:_general_jit_lookaside_map"
_AUTODIFF = "thunder.transforms.autodiff"
_MODULE = "thunder.core.module:ThunderModule"
_SYMBOL = "thunder.core.symbol:BoundSymbol"
_STORES = f"{_LOOKASIDES}[dict.__setitem__]", f"{_LOOKASIDES}[OrderedDict.__setitem__]"
_REFUSES_STORES = "thunder.core.jit_ext:process_recorded_modifications"

# In the order in which they are made: the later one calls the earlier one.
PATCHES: tuple[Patch, ...] = (
    Patch(
        "a bound symbol's line is the nearest one of the user's program", "note",
        hooks.user_lines_first,
        (f"{_INTERPRETER}:InterpreterRuntimeCtx.get_current_user_source_location",),
    ),
    Patch(
        "what the interpreter cannot read is told with its line and what to do", "note",
        limits.explain_limits, ("thunder:thunder_general_jit", *_STORES), (_REFUSES_STORES,),
    ),
    Patch(
        "strides of arguments, which Thunder forgets", "note",
        hooks.note_arguments, ("thunder.core.proxies:tensorproxy",),
    ),
    Patch(
        "a call of a module without hooks is read as its forward", "speed-up",
        interpreter.detour_calls_of_modules, (_LOOKASIDES,),
    ),
    Patch(
        "graphs' text, hooks, tracebacks, new modules: their functions are called, not read", "fix",
        interpreter.call_while_traced, (_LOOKASIDES,),
    ),
    Patch(
        "multi-head attention is one call of torch, without gradients where it has no weights",
        "fix", interpreter.read_attention,
        (f"{_LOOKASIDES}[multi_head_attention_forward]",
         "thunder.torch:_torch_to_thunder_function_map"),
    ),
    Patch(
        "a global's name is looked up by one call", "speed-up",
        interpreter.detour_globals, (f"{_INTERPRETER}:globals_lookup",),
    ),
    Patch(
        "Thunder's helpers are not interpreted: the calls that they make are made", "speed-up",
        interpreter.detour_helpers,
        (f"{_INTERPRETER}:_setup_frame_and_run_python_function",), READ,
    ),
    Patch(
        "a frame for tracebacks is made once for each line", "speed-up",
        interpreter.make_frames_once,
        (f"{_INTERPRETER}:InterpreterFrame.get_or_make_python_frame",),
    ),
    Patch(
        "trees are flattened without sets of types, and once", "speed-up",
        passes.flatten_fast,
        ("thunder.core.pytree:tree_flatten", "thunder.core.pytree:tree_flatten_with_dataclass"),
    ),
    Patch(
        "producers, printed values, dead code and maps over leaves by plain walks", "speed-up",
        bound_symbols.answer_fast,
        ("thunder.core.utils:producers", "thunder.core.codeutils:to_printable",
         "thunder.core.utils:safe_map_flat", "thunder.core.transform_common:dce",
         "thunder.core.pytree:tree_map"),
    ),
    Patch(
        "a function's signature is computed once", "speed-up",
        passes.normalize_fast, ("thunder.core.symbol:Symbol.normalize",),
    ),
    Patch(
        "leaves, copies and texts of bound symbols by plain walks", "speed-up",
        bound_symbols.ask_fast,
        tuple(f"{_SYMBOL}.{name}" for name in (
            "flat_args", "flat_outs", "from_bsym_swap_proxies", "gather_ctxs")),
    ),
    Patch(
        "a guard is compared with those of the same proxy", "speed-up",
        bound_symbols.guard_fast, ("thunder.core.jit_ext:JitCtx.add_constraint",),
    ),
    Patch(
        "operations are not claimed on trial in a trace without collectives", "speed-up",
        passes.claim_once,
        ("thunder.executors.passes:_transform_for_operator_executor_execution",
         "thunder.executors.passes:transform_for_execution"),
    ),
    Patch(
        "torchcompile gives a name to two values", "fix",
        passes.note_inner_names, ("thunder.executors.torch_compile:transform_for_execution",),
    ),
    Patch(
        "Thunder's passes build our regions again from their ops, which do not say all", "fix",
        hooks.keep_regions,
        ("thunder.executors.passes:_update_fusion_call_ctx",
         "thunder.core.rematerialization:find_fusion_producer_consumer_pairs"),
    ),
    Patch(
        "full collections of garbage wait until a function is compiled", "speed-up",
        garbage.collect_later, ("thunder:compile_data_and_stats",),
    ),
    Patch(
        "the gradients of a parameter of two names are added by autograd", "speed-up",
        tied_parameters.join_tied_parameters, ("thunder:thunder_general_jit",),
    ),
    Patch(
        "writes in place that another name shows have no gradient", "fix",
        hooks.change_before_gradient, ("thunder:insert_alias_updates",),
    ),
    Patch(
        "a loss in chunks takes the place of a head that transforms look for", "fix",
        hooks.change_behind_transforms, ("thunder:dce",),
    ),
    Patch(
        "gradients of complex tensors lack conjugates", "fix",
        complex_gradients.conjugate_gradients, complex_gradients.RULES,
    ),
    Patch(
        "gradients of slices of complex tensors are padded with 0j, which torch refuses", "fix",
        complex_gradients.pad_with_real_numbers, ("thunder.executors.torchex:_pad_prim_impl",),
    ),
    Patch(
        "floats of integers, and integers beside bools, have other types than in torch", "fix",
        promotion.promote_as_torch, ("thunder.core.utils:elementwise_type_promotion",),
    ),
    Patch(
        "gradients of 0-dim tensors on a CPU are not summed", "fix",
        promotion.broadcast_scalars, ("thunder.clang:maybe_broadcast",),
    ),
    Patch(
        "floor_divide of 16-bit floats gives float32", "fix",
        promotion.keep_types_of_quotients, ("thunder.clang:_floor_divide_float",),
    ),
    Patch(
        "operators that write, such as &=, raise an error", "fix", promotion.write_by_operators,
        tuple(f"thunder.core.proxies:TensorProxy +{name}" for name in promotion.WRITES),
    ),
    Patch(
        "a condition on a number that the program computes is false", "fix",
        promotion.decide_by_no_unknown_number,
        ("thunder.core.proxies:NumberProxy.__bool__", "thunder.torch:add.meta",
         "thunder.core.proxies:NumberProxy.make_static_constrained",
         "thunder.torch:sub.meta", "thunder.core.prims:convert_element_type.meta"),
    ),
    Patch(
        "autocast casts no mask of attention", "fix", promotion.cast_masks,
        ("thunder.transforms.autocast:autocast_impls"
         "[torch.nn.functional.scaled_dot_product_attention]",),
    ),
    Patch(
        "an empty range has no axis", "fix",
        promotion.keep_empty_axes, ("thunder.clang:arange",),
    ),
    Patch(
        "cat refuses a tensor [0] beside others of more axes", "fix",
        promotion.skip_empty_operands, ("thunder.clang:cat",),
    ),
    Patch(
        "a slice from before the first row is refused", "fix",
        promotion.begin_at_the_first_row, ("thunder.clang:_basic_indexing",),
    ),
    Patch(
        "the gradient of a value that is written by an index has the written tensor's type", "fix",
        promotion.convert_before_writes, ("thunder.clang:copy_with_setitem",),
    ),
    Patch(
        "thunderfx splits graphs at functions that are defined here", "fix",
        hooks.leave_in_graphs,
        ("thunder.torch.default_torch_ops:torch_auto_registered_ops",
         "thunder.torch:_torch_to_thunder_function_map"),
    ),
    Patch(
        "threads share what Thunder notes on a call: grad mode and autocast", "fix",
        thread_state.keep_state_by_thread,
        ("thunder.common:CompileData +is_grad_enabled",
         "thunder.common:CompileData +autocast_stack",
         "thunder.transforms.autocast:is_autocast_enabled",
         "thunder.transforms.autocast:disable_autocast"),
        ("thunder.common:CompileData.__init__",),
    ),
    Patch(
        "a call with other None, types, lengths or keys takes a program of another call", "fix",
        arguments.compare_arguments, ("thunder:thunder_general_jit",),
    ),
    Patch(
        "arguments of one storage are taken for one tensor", "fix",
        shared_arguments.tell_arguments_apart, ("thunder:insert_alias_updates",),
    ),
    Patch(
        "the gradient of relu(inplace=True) is 0 at NaN", "fix",
        gradient_rules.compute_relu_first, ("thunder.torch:relu.meta",),
    ),
    Patch(
        "the sum of two gradients refuses DTensors", "fix",
        gradient_rules.sum_dtensors, ("thunder.torch:add.meta",),
    ),
    Patch(
        "jitted modules lose their names inside others, are not copied, generate eagerly", "fix",
        modules.repair_modules,
        (f"{_MODULE}.state_dict", f"{_MODULE}.__getattr__", f"{_MODULE} +_load_from_state_dict",
         f"{_MODULE} +__deepcopy__", f"{_MODULE} +__reduce_ex__"),
        (f"{_MODULE}.__init__",),
    ),
    Patch(
        "jitted modules do not read parts that replace others, nor new hooks", "fix",
        replaced_parts.follow_replaced_parts,
        (f"{_MODULE}.__init__", f"{_MODULE}.forward", f"{_MODULE}.set_buffer",
         f"{_MODULE} +__setattr__"),
    ),
    Patch(
        "guards compare no None, functions, types and lengths of objects that stay", "fix",
        reads.guard_reads,
        ("thunder:thunder_general_jit",
         "thunder.core.jit_ext:general_jit_callbacks[INTERPRETER_CALLBACKS.WRAP_CALLBACK]",
         f"{_LOOKASIDES}[hasattr]"),
    ),
    Patch(
        "attributes that forward sets on the jitted module are lost", "fix",
        attributes.write_attributes_back,
        (_REFUSES_STORES, f"{_LOOKASIDES}[object.__setattr__]"),
    ),
    Patch(
        "the type of a tensor is one of Thunder's, which equals none of torch's", "fix",
        attributes.give_types_of_torch, (f"{_LOOKASIDES}[getattr]",),
    ),
    Patch(
        "results without gradients get some; derivatives of gradients are 0", "fix",
        autograd.repair_gradients,
        (f"{_AUTODIFF}:grad_transform_on_trace", f"{_AUTODIFF}:split_into_forward_and_backward",
         "thunder.executors.torch_autograd:ThunderFunction.backward",
         "thunder:connect_to_autograd"),
    ),
    Patch(
        "an autograd.Function in a graph of torch 2.11 is not read", "fix",
        autograd.read_autograd_functions,
        (f"{_LOOKASIDES}[autograd_function_apply]",),
    ),
)  # fmt: skip
