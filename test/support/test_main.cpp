// doctest's main, with memory that is kept: the cases take and free images of hundreds of megabytes thousands of times, and
// fresh pages for each cost more than the cases, on a virtual machine several minutes.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <malloc.h>

#include <limits>

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  return doctest::Context(argc, argv).run();
}
