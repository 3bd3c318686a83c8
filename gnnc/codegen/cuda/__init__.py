"""Sweeps as CUDA C++: `emit_cuda` gives the text, `compile_cuda` the cubin. This page is the launch protocol.

Files in the order data flows: ``emit`` chooses the path. Fragments: ``parts`` pulls slices to the loads and concats to the stores,
``shapes`` says whether a program fits, ``rescale`` finds running maxima, ``values`` and ``schedule`` pick lanes and edges in flight,
``scope`` names values, ``fragment`` writes the Program struct. ``general`` and ``nests`` write the other path. ``ops`` knows the
operations, ``text`` the result; ``compile`` and ``elf`` make the cubin and read it. ``skeletons/`` holds the CUDA side.

Entries
-------
A sweep has up to three ``extern "C" __global__`` functions, described by `CudaText.run`, ``merge`` and ``carry`` (`Entry`): ``K``,
``K_merge`` (None: rows split over chunks need no second step), ``K_carry`` (None: no sum over all rows). All take the same parameters,
each 8 bytes, a device pointer or a signed 64-bit integer, in this order::

    list        const I*     run: chunks; merge: hubs; carry, and run of a map: null
    count       i64          run: number of chunks (a map: of rows); merge: of hubs; carry: of carry images
    indptr      const i64*   row offsets of the grouped form, [rows + 1]                  (null for a map)
    neighbours  const I*     the other end of the edge in each slot, [edges]              (null for a map)
    edge_ids    const I*     the user's edge in each slot, [edges]; null: slot == edge    (null for a map)
    partials    u32*         state images, one a partial
    carries     u32*         carry images
    carry_base  i64          the first carry image of this launch
    workspace   u32*         scratch of the general path (null where workspace_words is 0)
    buffers...               one pointer each, in the order of CudaText.args: params, then results

``I`` is the index dtype, i32 or i64, of everything marked so; with i32 there must be fewer than 2^31 edges, nodes and partials. Offsets
into buffers are 64-bit always. Buffers are contiguous ``[rows, *dims]`` (a param ``[*dims]``), edge buffers in the user's edge order, and
start at multiples of 16 bytes. The read ones must not overlap the written ones. The same buffer may be bound to several read arguments.

Lists
-----
* **chunks**, ``I[count][4]``: (row, first slot, end slot, partial). *Every* row has a chunk, empty rows too (first == end): that is where
  its result is stored. A row's slots are cut into one or more chunks; a row in one chunk has partial -1, a row in several (a *hub*)
  has consecutive partials in slot order, all different over the list. Any order of chunks is right; put long ones first. Chunks of one
  row need not be of one length, and the chunk size is free: 256 edges is a good start.
* **hubs**, ``I[count][3]``: (row, first partial, end partial), one a hub row.
* a **map** (``grouped_by`` None) has no list: rows 0 .. count - 1 (one row where ``rows`` is "param").

Grids
-----
Every kernel works through its list with any one-dimensional grid, so no dimension overflows. Block size and dynamic shared memory are
``Entry.block`` and ``Entry.shared_bytes`` (at most 48 KiB: no attribute is needed). ``run`` takes ``Entry.items_per_block`` items at a
time, ``Entry.slices`` times over the list: ``ceil(count / items_per_block) * slices`` blocks cover everything once. ``Entry.persistent``:
each block leaves carry images, so launch a whole multiple of the resident blocks (occupancy API), at most what covers the list. ``merge``:
``ceil(hubs / items_per_block)`` blocks. ``carry``: one block, or ``slices`` blocks.

Images
------
* A partial's image is ``state_words`` 4-byte words at ``partials + partial * state_words``. ``run`` writes it, ``merge`` reads it: the
  launcher allocates ``num_partials * state_words * 4`` bytes (16-byte aligned, as all of these) and never looks inside.
* A carry image has ``carry_words`` words. A launch of ``run`` or ``merge`` with G blocks writes ``G * Entry.images_per_block`` of them,
  all of them, from ``carry_base`` on: 0 for ``run``; for ``merge`` the number that ``run`` wrote. ``carry`` gets ``count`` = all of them.
  Keep the carry images of a launch small beside the L2 cache by launching fewer blocks of ``run``: on the general path there is one for
  every warp, and the gradient of an edge-side weight is a matrix.
* ``workspace``: ``workspace_words * 4 * G`` bytes for the largest grid G of the sweep's launches. Contents mean nothing between launches.

Order of launches, on one stream::

    run     when count > 0, or when there is a `carry` entry (then with at least one block, also for an empty list)
    merge   when it exists and there are hubs
    carry   when it exists

No buffer needs zeroing. Sweeps without `carry` on zero rows are skipped.

Numbers
-------
Bitwise equal from run to run for one chunk list and one grid: no atomics; lanes, groups, warps, chunks and images are combined in a fixed
order. Carries depend on the grid (which block adds what), so the launcher must choose grids from counts and the device alone.
Arithmetic is IEEE: compiled with ``fma=False`` (every fma is written by the emitter), precise division and square root, CUDA's own expf,
logf, tanhf, erff, powf (2 ulp or better, powf 4), denormals kept. NaN stays NaN; maximum and minimum propagate it.
"""

from .emit import emit_cuda
from .schedule import CudaSchedule
from .text import CudaText, Entry

__all__ = ["CudaSchedule", "CudaText", "Entry", "emit_cuda"]
