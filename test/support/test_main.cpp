// doctest's main. It keeps freed memory: the cases allocate and free images of hundreds of megabytes thousands of
// times, and new pages for each would cost more than the cases, several minutes on a virtual machine.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <malloc.h>

#include <limits>

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  return doctest::Context(argc, argv).run();
}
