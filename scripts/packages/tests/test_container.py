"""The container file, step by step in a Debian of its own, since engines of containers are not everywhere."""

import tempfile
import unittest
import urllib.error
from pathlib import Path

from .. import container, deb
from . import chroot
from .containerfile import Container
from .programs import ANSWER, ask, binaries, chat, ports


class ContainerImage(unittest.TestCase):
    def test_op_9_an_image_runs_as_a_user_of_its_own_and_is_open_only_with_keys(self):
        chroot.require()
        folder = tempfile.TemporaryDirectory(prefix="model-boss-container-")
        self.addCleanup(folder.cleanup)
        package = deb.make(binaries(), Path(folder.name), cuda=False)
        context = container.context(package, Path(folder.name) / "context", cuda=False)
        debian = chroot.Debian()
        self.addCleanup(debian.close)
        image = Container(context / "Containerfile", context, debian)

        self.assertIn(chroot.release()[1], image.said["FROM"], "the test runs the release that the image is made from")
        self.assertNotIn(image.user, ("root", "0"))
        self.assertEqual((image.said["VOLUME"], image.said["EXPOSE"]), ("/var/lib/model-boss", "8210"))
        self.assertEqual(list((debian.root / "var/lib/apt/lists").iterdir()), [], "the image carries no lists of packages")
        self.assertFalse((debian.root / "tmp/model-boss.deb").exists())
        start, settings = image.said["ENTRYPOINT"] + image.said["CMD"], image.environment | ports()

        refused = debian.run(*start, user=image.user, check=False, **settings)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("keys create", refused.stderr, "without a key it is open to nobody, and says what to do")

        made = debian.run(*image.said["ENTRYPOINT"], "keys", "create", "me", "--scope", "admin", user=image.user, **settings)
        key = next(word for word in made.stdout.split() if word.startswith("mb-"))
        service = debian.start(start, image.user, **settings)
        self.addCleanup(service.kill)
        self.assertIn(ANSWER, chat(service.port, key), service.log())
        with self.assertRaises(urllib.error.HTTPError) as without:
            ask(service.port, "/v1/models")
        self.assertEqual(without.exception.code, 401)
        live = [*image.said["HEALTHCHECK"], service.port]
        self.assertEqual(debian.run(*live, user=image.user, check=False).returncode, 0)
        self.assertEqual(service.end(), 0, service.log())
        self.assertNotEqual(debian.run(*live, user=image.user, check=False).returncode, 0, "nothing is live any more")
